//! Gathered writes against the same writes one by one, on a sink of a few rows that is held in memory.
//!
//! A source does at random what a source may do, and the writes that come of it are gathered. What
//! the sink then takes must leave the same rows and the same count as the writes in their order; what
//! it refuses is written in that order anyway.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use monarch_model::Lsn;

use super::super::tables::Kind;
use super::super::{IdSet, KeyKind, Reason};
use super::*;

const GRAND: TableIndex = 0;
const PARENT: TableIndex = 1;
const CHILD: TableIndex = 2;
/// Places of columns: the key, what the row hangs on, a label, and in a child a number.
const TIE: usize = 1;
const LABEL: usize = 2;
const NUMBER: usize = 3;

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % most
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        let at = usize::try_from(self.below(of.len().max(1) as u64)).unwrap();
        of.get(at).cloned()
    }
}

type Rows = BTreeMap<(TableIndex, String), Vec<String>>;

/// What the tables are like.
struct World {
    tables: Vec<Table>,
    suited: Vec<Suited>,
    /// Whether the log has whole old rows.
    whole: bool,
    /// Whether a row that is new on the source is expected to be new on the sink.
    expects_new: bool,
}

impl World {
    fn roll(dice: &mut Dice) -> Self {
        let mut ids = IdSet::new(KeyKind::Text);
        ids.insert(b"1");
        let parent = Kind::Parent { enforced: true };
        let within = |parent| Tie::Within {
            column: TIE,
            parent,
        };
        let columns = ["id", "tie", "label", "number"];
        let fixed = Tie::Fixed { column: TIE, ids };
        let mut tables = vec![
            Table::of_columns("grand", &columns[..3], parent, fixed),
            Table::of_columns("parent", &columns[..3], parent, within(GRAND)),
            Table::of_columns("child", &columns, Kind::Leaf, within(PARENT)),
        ];
        tables[CHILD].columns[NUMBER].identity_always = dice.coin();
        let suited = |_| Suited {
            together: true,
            apart: dice.coin().then(|| vec![0, LABEL]),
            in_order: false,
        };
        Self {
            suited: (0..3).map(suited).collect(),
            tables,
            whole: dice.coin(),
            expects_new: dice.coin(),
        }
    }

    fn is_ours(&self, rows: &Rows, table: TableIndex, row: &[String]) -> bool {
        match table {
            GRAND => row[TIE] == "1",
            _ => rows
                .get(&(table - 1, row[TIE].clone()))
                .is_some_and(|above| self.is_ours(rows, table - 1, above)),
        }
    }

    /// Whether another row of the table has the label, where that is not allowed.
    fn label_is_taken(&self, rows: &Rows, table: TableIndex, row: &[String]) -> bool {
        self.suited[table].apart.is_some()
            && rows.iter().any(|((of, key), other)| {
                *of == table && *key != row[0] && other[LABEL] == row[LABEL]
            })
    }

    fn numbers_itself(&self, table: TableIndex, column: usize) -> bool {
        self.tables[table].columns[column].identity_always
    }

    /// Puts a row, if its label is free.
    fn put(
        &self,
        rows: &mut Rows,
        table: TableIndex,
        row: Vec<String>,
    ) -> Result<(), &'static str> {
        if self.label_is_taken(rows, table, &row) {
            return Err("refused");
        }
        rows.insert((table, row[0].clone()), row);
        Ok(())
    }

    /// What a statement for one row does; scopes are read from `seen`. How many rows it wrote.
    fn execute(
        &self,
        rows: &mut Rows,
        seen: &Rows,
        many: &Many,
        values: &[Param],
    ) -> Result<u64, &'static str> {
        let table = many.table;
        let key = match many.verb {
            Verb::Upsert => text(&values[0]),
            Verb::Update { .. } | Verb::Delete => text(values.last().unwrap()),
        };
        let old = rows.get(&(table, key.clone())).cloned();
        let ours = old
            .as_ref()
            .is_some_and(|old| self.is_ours(seen, table, old));
        let given = |column| many.verb.param(values, column).map(text);
        match (&many.verb, old) {
            (Verb::Upsert, None) => {
                let row = values.iter().map(text).collect();
                self.put(rows, table, row).map(|()| 1)
            }
            (Verb::Upsert, Some(_)) if many.fresh => Err("refused"),
            (Verb::Delete, Some(_)) if ours => {
                rows.remove(&(table, key));
                Ok(1)
            }
            (Verb::Upsert | Verb::Update { .. }, Some(mut row)) if ours => {
                for (column, value) in row.iter_mut().enumerate().skip(1) {
                    let new = given(column).filter(|_| !self.numbers_itself(table, column));
                    *value = new.unwrap_or_else(|| value.clone());
                }
                self.put(rows, table, row).map(|()| 1)
            }
            _ => Ok(0),
        }
    }
}

fn text(param: &Param) -> String {
    match param {
        Param::Text(text) => String::from_utf8_lossy(text).into_owned(),
        other => panic!("{other:?}"),
    }
}

/// A source under way, and what its changes come to.
struct Source<'a> {
    world: &'a World,
    rows: Rows,
    writes: Vec<Write>,
    /// The numbers that rows of the sink must have in the end.
    numbers: BTreeMap<String, String>,
}

impl Source<'_> {
    fn step(&mut self, dice: &mut Dice) {
        let table = dice
            .pick(&[GRAND, PARENT, PARENT, CHILD, CHILD, CHILD])
            .unwrap();
        let new = dice.below(6).to_string();
        let there = self.rows.contains_key(&(table, new.clone()));
        if !there {
            self.insert(dice, table, new);
        } else if table == CHILD && dice.below(3) == 0 {
            self.delete(&new);
        } else {
            self.update(dice, table, &new);
        }
    }

    fn above(&self, dice: &mut Dice, table: TableIndex, like: Option<bool>) -> Option<String> {
        if table == GRAND {
            return Some(
                if like.unwrap_or_else(|| dice.below(4) > 0) {
                    "1"
                } else {
                    "2"
                }
                .into(),
            );
        }
        let of_kind = |above: &Vec<String>| {
            like.is_none_or(|like| self.world.is_ours(&self.rows, table - 1, above) == like)
        };
        let above = self
            .rows
            .iter()
            .filter(|((of, _), row)| *of == table - 1 && of_kind(row));
        let ids: Vec<String> = above.map(|((_, key), _)| key.clone()).collect();
        dice.pick(&ids)
    }

    fn insert(&mut self, dice: &mut Dice, table: TableIndex, key: String) {
        let Some(tie) = self.above(dice, table, None) else {
            return;
        };
        let mut row = vec![
            key,
            tie,
            dice.below(9).to_string(),
            dice.below(9).to_string(),
        ];
        row.truncate(self.world.tables[table].columns.len());
        if self.world.label_is_taken(&self.rows, table, &row) {
            return;
        }
        self.rows.insert((table, row[0].clone()), row.clone());
        if self.world.is_ours(&self.rows, table, &row) {
            self.upsert(table, &row, self.world.expects_new);
        }
    }

    fn delete(&mut self, key: &str) {
        let row = self.rows.remove(&(CHILD, key.to_owned())).unwrap();
        if !self.world.whole {
            self.write(CHILD, Verb::Delete, &row, Missing::Fine, false);
        } else if self.world.is_ours(&self.rows, CHILD, &row) {
            let missing = Missing::Fatal(Reason::RowMissing);
            self.write(CHILD, Verb::Delete, &row, missing, false);
        }
    }

    fn update(&mut self, dice: &mut Dice, table: TableIndex, key: &str) {
        let world = self.world;
        let old = self.rows[&(table, key.to_owned())].clone();
        let was = world.is_ours(&self.rows, table, &old);
        let mut row = old.clone();
        // A parent that leaves or enters is nothing that is gathered.
        let like = (table != CHILD).then_some(was);
        if dice.coin() {
            row[TIE] = self
                .above(dice, table, like)
                .unwrap_or_else(|| row[TIE].clone());
        }
        if dice.coin() {
            row[LABEL] = dice.below(9).to_string();
        }
        if table == CHILD && dice.below(4) == 0 {
            row[NUMBER] = dice.below(9).to_string();
        }
        if world.label_is_taken(&self.rows, table, &row) {
            return;
        }
        self.rows.insert((table, key.to_owned()), row.clone());
        let is = world.is_ours(&self.rows, table, &row);
        let missing = Missing::Fatal(Reason::RowMissing);
        let set = |columns: &[usize]| Verb::Update {
            set: (0..row.len())
                .map(|at| columns.contains(&at) && !world.numbers_itself(table, at))
                .collect(),
        };
        let knows = world.whole || table != CHILD;
        match (knows, was, is) {
            (true, true, true) => {
                self.write(table, set(&[TIE, LABEL, NUMBER]), &row, missing, false)
            }
            (true, true, false) => self.write(table, Verb::Delete, &row, missing, false),
            (true, false, true) => self.upsert(table, &row, false),
            (true, false, false) => {}
            (false, _, false) => self.write(table, Verb::Delete, &row, Missing::Fine, false),
            (false, _, true) if row[LABEL] == old[LABEL] && dice.coin() => {
                self.write(table, set(&[TIE, NUMBER]), &row, Missing::Fetch, false);
            }
            (false, _, true) if row[TIE] == old[TIE] && dice.coin() => {
                self.write(table, set(&[LABEL, NUMBER]), &row, Missing::Fine, false);
            }
            (false, _, true) => self.upsert(table, &row, false),
        }
    }

    fn upsert(&mut self, table: TableIndex, row: &[String], fresh: bool) {
        let taken = Missing::Fatal(Reason::KeyTakenByOtherTenant);
        self.write(table, Verb::Upsert, row, taken, fresh);
    }

    fn write(
        &mut self,
        table: TableIndex,
        verb: Verb,
        row: &[String],
        missing: Missing,
        fresh: bool,
    ) {
        let value = |value: &String| Bytes::copy_from_slice(value.as_bytes());
        let given = |at: &usize| match &verb {
            Verb::Upsert => true,
            Verb::Update { set } => set[*at],
            Verb::Delete => false,
        };
        let places = (0..row.len()).filter(given);
        let mut params: Vec<Param> = places.map(|at| Param::Text(value(&row[at]))).collect();
        if verb != Verb::Upsert {
            params.push(Param::Text(value(&row[0])));
        }
        if table == CHILD && verb != Verb::Delete && missing != Missing::Fine {
            self.numbers.insert(row[0].clone(), row[NUMBER].clone());
        }
        let lives = verb != Verb::Delete;
        let at = LastChange {
            lsn: Lsn(self.writes.len() as u64 + 1),
            committed_at: Timestamp::UNIX_EPOCH,
        };
        self.writes.push(Write {
            table,
            verb,
            params,
            missing,
            own: vec![value(&row[0])],
            key: lives.then(|| vec![value(&row[0])]),
            tie: (lives && missing != Missing::Fine).then(|| value(&row[TIE])),
            fresh,
            at,
        });
    }
}

/// Rows, and how many were written.
type Outcome = Result<(Rows, u64), &'static str>;

fn one_by_one(world: &World, mut rows: Rows, writes: &[Write]) -> Outcome {
    let mut changes = 0;
    for write in writes {
        let mut many = write.many();
        many.fresh = false;
        let seen = rows.clone();
        let wrote = world.execute(&mut rows, &seen, &many, &write.params)?;
        if wrote == 0 && write.missing != Missing::Fine {
            return Err("missing");
        }
        changes += wrote;
    }
    Ok((rows, changes))
}

fn gathered(world: &World, mut rows: Rows, together: &Together) -> Outcome {
    let mut changes = 0;
    for batch in together.batches() {
        let seen = rows.clone();
        let mut met = std::collections::BTreeSet::new();
        for row in &batch.rows {
            let values = together.values(row);
            let key = match batch.many.verb {
                Verb::Upsert => text(&values[0]),
                Verb::Update { .. } | Verb::Delete => text(values.last().unwrap()),
            };
            // A statement writes a row once.
            if !met.insert(key) {
                match batch.many.verb {
                    Verb::Upsert => return Err("refused"),
                    Verb::Update { .. } | Verb::Delete if batch.many.tells => continue,
                    Verb::Update { .. } | Verb::Delete => return Err("fell short"),
                }
            }
            let wrote = world.execute(&mut rows, &seen, &batch.many, values)?;
            if wrote == 0 && !batch.many.tells {
                return Err("fell short");
            }
            changes += wrote * row.writes;
        }
    }
    Ok((rows, changes))
}

/// A sink with the organization's rows, and rows of another tenant that may be in the way.
fn sink(world: &World, source: &Rows, dice: &mut Dice) -> Rows {
    let ours = |(of, row): &(&(TableIndex, String), &Vec<String>)| world.is_ours(source, of.0, row);
    let mut sink: Rows = source
        .iter()
        .filter(ours)
        .map(|(of, row)| (of.clone(), row.clone()))
        .collect();
    for table in [GRAND, PARENT, CHILD] {
        let key = dice.pick(&["3", "90"]).unwrap().to_owned();
        let tie = if table == GRAND { "9" } else { "90" };
        let mut row = vec![
            key,
            tie.to_owned(),
            dice.below(30).to_string(),
            "0".to_owned(),
        ];
        row.truncate(world.tables[table].columns.len());
        let free = !sink.contains_key(&(table, row[0].clone()));
        if free && dice.below(4) == 0 {
            let _ = world.put(&mut sink, table, row);
        }
    }
    sink
}

/// Guards promise 1 where writes share statements, by each of the rules above: without any one of
/// them some of these come out otherwise.
#[test]
fn what_is_taken_together_is_as_one_by_one() {
    let mut taken = 0;
    let (mut joined, mut taken_in) = (0, 0);
    for seed in 0..10_000 {
        let mut dice = Dice(seed);
        let world = World::roll(&mut dice);
        let mut source = Source {
            world: &world,
            rows: Rows::new(),
            writes: Vec::new(),
            numbers: BTreeMap::new(),
        };
        for _ in 0..dice.below(20) {
            source.step(&mut dice);
        }
        let sink = sink(&world, &source.rows, &mut dice);
        source.writes.clear();
        source.numbers.clear();
        for _ in 0..2 + dice.below(30) {
            source.step(&mut dice);
        }
        let Source {
            writes, numbers, ..
        } = source;
        let numbers_fit = |(rows, _): &(Rows, u64)| {
            let mut ours = rows.iter().filter(|((of, _), _)| *of == CHILD);
            ours.all(|((_, key), row)| {
                let noted = numbers
                    .get(key)
                    .filter(|_| world.numbers_itself(CHILD, NUMBER));
                noted.is_none_or(|noted| *noted == row[NUMBER])
            })
        };
        let single = one_by_one(&world, sink.clone(), &writes);
        let mut together = Together::default();
        for write in writes {
            let (table, suited) = (&world.tables[write.table], &world.suited[write.table]);
            together.gather(write, table, suited);
        }
        let Ok(many) = gathered(&world, sink, &together) else {
            continue;
        };
        taken += 1;
        let rows = together.batches().iter().flat_map(|batch| &batch.rows);
        let written: u64 = rows.clone().map(|row| row.writes).sum();
        taken_in += written - rows.clone().count() as u64;
        joined += rows.count() - together.batches().len();
        let single = single.unwrap_or_else(|why| panic!("seed {seed}: one by one {why}"));
        assert_eq!(numbers_fit(&many), numbers_fit(&single), "seed {seed}");
        assert!(
            many == single || !numbers_fit(&single),
            "seed {seed}: {many:?} {single:?}"
        );
    }
    assert!(taken > 5_000, "{taken}");
    assert!(joined > 5_000 && taken_in > 1_000, "{joined} {taken_in}");
}

/// Guards a sink whose foreign keys act: each must meet what it met on the source.
#[test]
fn in_order_means_in_the_order_of_the_log() {
    for seed in 0..500 {
        let mut dice = Dice(seed);
        let mut world = World::roll(&mut dice);
        for suited in &mut world.suited {
            suited.in_order = true;
        }
        let mut source = Source {
            world: &world,
            rows: Rows::new(),
            writes: Vec::new(),
            numbers: BTreeMap::new(),
        };
        for _ in 0..50 {
            source.step(&mut dice);
        }
        let mut together = Together::default();
        let count = source.writes.len();
        for write in source.writes {
            let (table, suited) = (&world.tables[write.table], &world.suited[write.table]);
            together.gather(write, table, suited);
        }
        let rows = together.batches().iter().flat_map(|batch| &batch.rows);
        let order: Vec<usize> = rows.map(|row| row.first).collect();
        assert_eq!(order, (0..count).collect::<Vec<_>>(), "seed {seed}");
    }
}

/// A write of a row of `child`, whose label and number are one.
fn simple(key: &str, verb: Verb, value: &str, missing: Missing) -> Write {
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    let given: &[&str] = match verb {
        Verb::Update { .. } => &[value, key],
        Verb::Delete => &[key],
        Verb::Upsert => &[key, "1", value, value],
    };
    Write {
        table: CHILD,
        verb,
        params: given.iter().map(|text| Param::Text(bytes(text))).collect(),
        missing,
        own: vec![bytes(key)],
        key: Some(vec![bytes(key)]),
        tie: None,
        fresh: false,
        at: LastChange {
            lsn: Lsn(1),
            committed_at: Timestamp::UNIX_EPOCH,
        },
    }
}

/// How many rows each statement gets.
fn sizes(writes: impl IntoIterator<Item = Write>, suited: &Suited) -> Vec<usize> {
    let world = World::roll(&mut Dice(1));
    let mut together = Together::default();
    for write in writes {
        together.gather(write, &world.tables[CHILD], suited);
    }
    let batches = together.batches().iter();
    batches.map(|batch| batch.rows.len()).collect()
}

/// Guards the pace where values go from row to row: the sink would refuse them in another order.
#[test]
fn a_value_is_given_up_before_another_row_has_it() {
    let set = || Verb::Update {
        set: vec![false, false, true, false],
    };
    let writes = || {
        let update = |key, value| simple(key, set(), value, Missing::Fine);
        let delete = simple("2", Verb::Delete, "", Missing::Fine);
        [update("1", "a"), delete, update("3", "b"), update("4", "c")]
    };
    let apart = Suited {
        apart: Some(vec![LABEL]),
        ..Suited::default()
    };
    assert_eq!(sizes(writes(), &apart), [1, 1, 2]);
    assert_eq!(sizes(writes(), &Suited::default()), [3, 1]);
}

/// Guards the name of a failure: a row that must be there is not forgiven for one that need not be.
#[test]
fn a_row_that_must_be_there_is_not_taken_into_one_that_need_not() {
    let set = || Verb::Update {
        set: vec![false, false, true, false],
    };
    let must = Missing::Fatal(Reason::RowMissing);
    for (first, second, statements) in [
        (Missing::Fine, must, 2),
        (must, Missing::Fine, 2),
        (must, Missing::Fetch, 1),
        (Missing::Fine, Missing::Fine, 1),
    ] {
        let writes = [first, second].map(|missing| simple("1", set(), "a", missing));
        assert_eq!(sizes(writes, &Suited::default()).len(), statements);
    }
}

/// Guards the memory of a stream of wide old rows: a few values do not hold the frame that they came
/// in.
#[test]
fn values_do_not_hold_their_frame() {
    let frame = Bytes::from(vec![b'7'; 1000]);
    let value = frame.slice(0..1);
    let mut write = Write {
        params: vec![Param::Text(value.clone())],
        own: vec![value.clone()],
        tie: Some(value),
        ..simple("7", Verb::Delete, "", Missing::Fine)
    };
    write.leave_frame();
    assert!(frame.is_unique(), "somebody holds it");
    assert_eq!(write.own, [Bytes::from("7")]);
    assert_eq!(write.params, [Param::Text(Bytes::from("7"))]);
    assert_eq!(write.tie, Some(Bytes::from("7")));
}
