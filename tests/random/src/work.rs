//! Rolls an organization, its neighbours, and what becomes of their rows: a script of transactions.
//!
//! Each change is rolled against what the rows will be by then, so that the source accepts it. In a
//! calm script a move has no excuse: nothing happens that it may fail of. In a wild one a few
//! transactions are not asked.

use std::collections::BTreeSet;

use crate::dice::Dice;
use crate::model::{Body, Causes, Key, Op, Row, Set, State};
use crate::schema::{Identity, Numbered, Role, Schema};

/// The organization that moves.
pub const ORG: u32 = 1;
/// The other tenants of the source.
const NEIGHBOURS: [u32; 2] = [2, 3];
/// The sink's own tenant; its keys are beyond those of the source.
const AT_HOME: u32 = 20_001;

/// A transaction of the source.
#[derive(Debug, Clone)]
pub struct Transaction {
    /// What it does.
    pub ops: Vec<Op>,
    /// Another one, which begins and commits behind the first `.1` of these.
    pub within: Option<(Vec<Op>, usize)>,
    /// Whether it is rolled back.
    pub rolled_back: bool,
}

/// What happens on the source, and what comes of it.
#[derive(Debug, Clone)]
pub struct Script {
    /// The rows at the beginning.
    pub initial: State,
    /// What happens.
    pub transactions: Vec<Transaction>,
    /// Why a move beside it may fail.
    pub causes: Causes,
    /// The rows at the end.
    pub last: State,
}

/// The rows of the sink's own tenant.
#[must_use]
pub fn at_home(schema: &Schema, dice: &mut Dice) -> State {
    let mut work = Work::new(schema, dice.fork(), AT_HOME, AT_HOME + 1);
    work.populate(&[AT_HOME]);
    work.state
}

/// Rolls rows and a script.
#[must_use]
pub fn roll(schema: &Schema, dice: &mut Dice, calm: bool) -> Script {
    let mut work = Work::new(schema, dice.fork(), ORG, 4);
    let tenants = [ORG, NEIGHBOURS[0], NEIGHBOURS[1]];
    work.populate(&tenants);
    let initial = work.state.clone();
    let mut causes = Causes::new();
    let mut transactions = Vec::new();
    let wanted = dice.between(25, 60) as usize;
    for _ in 0..4 * wanted {
        if transactions.len() == wanted {
            break;
        }
        if let Some((transaction, state, found)) = work.transaction(calm) {
            causes.extend(found);
            work.state = state;
            transactions.push(transaction);
        }
    }
    Script {
        initial,
        transactions,
        causes,
        last: work.state,
    }
}

impl Script {
    /// Keeps the first transactions alone.
    pub fn cut(&mut self, schema: &Schema, keep: usize) {
        if keep >= self.transactions.len() {
            return;
        }
        self.transactions.truncate(keep);
        self.last = self.initial.clone();
        self.causes = Causes::new();
        for transaction in &self.transactions {
            if let Some((beside, _)) = &transaction.within {
                self.causes.extend(self.last.commit(schema, beside));
            }
            if !transaction.rolled_back {
                self.causes
                    .extend(self.last.commit(schema, &transaction.ops));
            }
        }
    }
}

struct Work<'a> {
    schema: &'a Schema,
    dice: Dice,
    state: State,
    /// The next number that no key and no label has.
    next: u32,
    /// Keys whose rows were deleted.
    freed: Vec<(usize, Key)>,
    /// Rows that the transaction at hand touched.
    recent: Vec<(usize, Key)>,
}

impl<'a> Work<'a> {
    fn new(schema: &'a Schema, dice: Dice, org: u32, next: u32) -> Self {
        Self {
            schema,
            dice,
            state: State::new(schema, org),
            next,
            freed: Vec::new(),
            recent: Vec::new(),
        }
    }

    fn fresh(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Rows for each tenant, parents first.
    fn populate(&mut self, tenants: &[u32]) {
        let schema = self.schema;
        for (table, of) in schema.tables.iter().enumerate() {
            let rows = match of.role {
                Role::Root => 0,
                Role::Static => self.dice.between(2, 4) * tenants.len() as u32,
                Role::Parent => self.dice.between(3, 6) * tenants.len() as u32,
                Role::Leaf => self.dice.between(4, 9) * tenants.len() as u32,
            };
            for &tenant in tenants.iter().filter(|_| of.role == Role::Root) {
                let row = self.row(table, None);
                self.put(table, vec![tenant], row);
            }
            for n in 0..rows {
                let Some(tie) = self.tie_for(table, n as usize) else {
                    continue;
                };
                let row = self.row(table, tie);
                let key = self.new_key(table, tie);
                self.put(table, key, row);
            }
        }
    }

    fn put(&mut self, table: usize, key: Key, row: Row) {
        let op = Op::Insert {
            table,
            rows: vec![(key, row)],
        };
        self.state.commit(self.schema, &[op]);
    }

    /// A tie for the `n`th row at the beginning; of those of static tables each tenant has some.
    fn tie_for(&mut self, table: usize, n: usize) -> Option<Option<u32>> {
        let edge = self.schema.tables[table].edge.as_ref()?;
        if edge.nullable && self.dice.percent(8) {
            return Some(None);
        }
        if edge.foreign_key.is_none()
            && self.schema.tables[table].is_dynamic()
            && self.dice.percent(5)
        {
            return Some(Some(self.fresh()));
        }
        let parents: Vec<u32> = self.state.tables[edge.parent]
            .keys()
            .map(|key| key[0])
            .collect();
        let parent = match self.schema.tables[table].role {
            Role::Static => parents.get(n % parents.len().max(1)).copied(),
            _ => self.dice.pick(&parents).copied(),
        };
        parent.map(Some)
    }

    fn row(&mut self, table: usize, tie: Option<u32>) -> Row {
        Row {
            tie,
            label: self.fresh(),
            large: self.schema.tables[table].body && self.dice.percent(40),
            version: self.dice.below(10_000),
        }
    }

    /// A key that no row has, with the tie where it belongs to it.
    fn new_key(&mut self, table: usize, tie: Option<u32>) -> Key {
        let of = &self.schema.tables[table];
        let in_key = of.edge.as_ref().and_then(|edge| edge.in_key);
        let columns = of.key.len();
        (0..columns)
            .map(|at| match tie.filter(|_| in_key == Some(at)) {
                Some(tie) => tie,
                None => self.fresh(),
            })
            .collect()
    }

    /// A transaction, what the rows are behind it, and of what a move may fail by it. None if
    /// nothing came of the roll, or the script must stay calm.
    fn transaction(&mut self, calm: bool) -> Option<(Transaction, State, Causes)> {
        let rolled_back = self.dice.percent(6);
        let large = self.dice.percent(7);
        let wanted = if large {
            12
        } else {
            self.dice.weighted(&[(5, 1), (4, 3), (2, 7)])
        };
        let ops = if self.dice.percent(2) {
            self.truncate()
        } else {
            self.ops(wanted, large, true)
        };
        if ops.is_empty() {
            return None;
        }
        let within = self.dice.percent(20).then(|| self.beside(&ops)).flatten();
        let mut state = self.state.clone();
        let mut causes = Causes::new();
        if let Some((beside, _)) = &within {
            causes.extend(state.commit(self.schema, beside));
        }
        if !rolled_back {
            causes.extend(state.commit(self.schema, &ops));
        }
        if !causes.is_empty() && (calm || !self.dice.percent(12)) {
            return None;
        }
        let transaction = Transaction {
            ops,
            within,
            rolled_back,
        };
        Some((transaction, state, causes))
    }

    /// A table loses all rows of all tenants. Not in the company of changes that a foreign key still
    /// asks about.
    fn truncate(&mut self) -> Vec<Op> {
        let leaves: Vec<usize> = (0..self.schema.tables.len())
            .filter(|&at| self.schema.tables[at].role == Role::Leaf)
            .collect();
        let leaf = self.dice.pick(&leaves).copied();
        leaf.map(|table| Op::Truncate { table })
            .into_iter()
            .collect()
    }

    fn ops(&mut self, wanted: usize, large: bool, may_undo: bool) -> Vec<Op> {
        let mut draft = self.state.clone();
        self.recent.clear();
        self.roll_ops(&mut draft, wanted, large, may_undo)
    }

    fn roll_ops(
        &mut self,
        draft: &mut State,
        wanted: usize,
        large: bool,
        may_undo: bool,
    ) -> Vec<Op> {
        let mut ops = Vec::new();
        for _ in 0..wanted {
            if may_undo && self.dice.percent(8) {
                let mut undone = draft.clone();
                let recent = self.recent.clone();
                let rolled = self.roll_ops(&mut undone, 3, large, false);
                self.recent = recent;
                if !rolled.is_empty() {
                    ops.push(Op::Undone(rolled));
                }
                continue;
            }
            for op in self.roll_op(draft, large) {
                draft.apply(self.schema, &op);
                ops.push(op);
            }
        }
        ops
    }

    /// One change, in as many statements as it needs.
    fn roll_op(&mut self, draft: &State, large: bool) -> Vec<Op> {
        type Roll<'a> = fn(&mut Work<'a>, &State) -> Vec<Op>;
        if large && self.dice.percent(40) {
            return self.many(draft);
        }
        let kinds: [(u32, Roll<'a>); 8] = [
            (24, Self::insert),
            (22, Self::touch),
            (16, Self::reparent),
            (9, Self::rekey),
            (14, Self::delete),
            (5, Self::swap),
            (2, Self::touch_all),
            (3, Self::of_the_spine),
        ];
        let roll = self.dice.weighted(&kinds);
        roll(self, draft)
    }

    fn dynamic_table(&mut self) -> Option<usize> {
        let tables: Vec<usize> = (0..self.schema.tables.len())
            .filter(|&at| self.schema.tables[at].is_dynamic())
            .collect();
        self.dice.pick(&tables).copied()
    }

    /// A row of a table: often the organization's, often one that this transaction touched.
    fn some_row(&mut self, draft: &State, table: usize) -> Option<Key> {
        if self.dice.percent(30) {
            let recent: Vec<Key> = self
                .recent
                .iter()
                .filter(|(at, key)| *at == table && draft.tables[table].contains_key(key))
                .map(|(_, key)| key.clone())
                .collect();
            if let Some(key) = self.dice.pick(&recent) {
                return Some(key.clone());
            }
        }
        let ours = self.dice.percent(60);
        let rows = draft.tables[table].iter();
        let keys: Vec<&Key> = rows
            .filter(|(key, row)| draft.is_ours(self.schema, table, key, row.tie) == ours)
            .map(|(key, _)| key)
            .collect();
        self.dice.pick(&keys).map(|key| (*key).clone())
    }

    /// A parent for a row that is new or moves, and what must follow to make it one.
    fn some_tie(&mut self, draft: &State, table: usize) -> Option<(Option<u32>, Vec<Op>)> {
        let edge = self.schema.tables[table].edge.as_ref()?;
        if edge.nullable && self.dice.percent(8) {
            return Some((None, Vec::new()));
        }
        let parent = edge.parent;
        let dynamic = self.schema.tables[parent].role == Role::Parent;
        let may_dangle = edge.foreign_key.is_none();
        let may_come_first = may_dangle || edge.foreign_key.is_some_and(|key| key.deferred);
        if may_dangle && self.dice.percent(6) {
            return Some((Some(self.fresh()), Vec::new()));
        }
        if dynamic && may_come_first && self.dice.percent(12) {
            let (tie, mut first) = self.some_tie(draft, parent)?;
            let key = self.new_key(parent, tie);
            let row = self.row(parent, tie);
            self.recent.push((parent, key.clone()));
            let promised = key[0];
            let insert = Op::Insert {
                table: parent,
                rows: vec![(key, row)],
            };
            first.insert(0, insert);
            return Some((Some(promised), first));
        }
        let key = self.some_row(draft, parent)?;
        Some((Some(key[0]), Vec::new()))
    }

    fn insert(&mut self, draft: &State) -> Vec<Op> {
        let Some(table) = self.dynamic_table() else {
            return Vec::new();
        };
        let Some((tie, then)) = self.some_tie(draft, table) else {
            return Vec::new();
        };
        let key = self.reused_key(draft, table, tie);
        let key = key.unwrap_or_else(|| self.new_key(table, tie));
        let row = self.row(table, tie);
        self.recent.push((table, key.clone()));
        let insert = Op::Insert {
            table,
            rows: vec![(key, row)],
        };
        std::iter::once(insert).chain(then).collect()
    }

    /// A key that another row had, perhaps of another tenant.
    fn reused_key(&mut self, draft: &State, table: usize, tie: Option<u32>) -> Option<Key> {
        if !self.dice.percent(25) {
            return None;
        }
        let in_key = self.schema.tables[table].edge.as_ref()?.in_key;
        let free: Vec<Key> = self
            .freed
            .iter()
            .filter(|(at, key)| {
                *at == table
                    && !draft.tables[table].contains_key(key)
                    && in_key.is_none_or(|place| Some(key[place]) == tie)
            })
            .map(|(_, key)| key.clone())
            .collect();
        self.dice.pick(&free).cloned()
    }

    /// Many rows in one statement: enough for the source to stream the transaction before its end.
    fn many(&mut self, draft: &State) -> Vec<Op> {
        let Some(table) = self.dynamic_table() else {
            return Vec::new();
        };
        let mut rows = Vec::new();
        for _ in 0..self.dice.between(20, 120) {
            let Some((tie, then)) = self.some_tie(draft, table) else {
                continue;
            };
            if then.is_empty() {
                let key = self.new_key(table, tie);
                let row = self.row(table, tie);
                self.recent.push((table, key.clone()));
                rows.push((key, row));
            }
        }
        if rows.is_empty() {
            return Vec::new();
        }
        vec![Op::Insert { table, rows }]
    }

    /// Columns that say nothing of the row's place.
    fn plain_set(&mut self) -> Set {
        let body = self.dice.weighted(&[
            (6, None),
            (2, Some(Body::Large)),
            (1, Some(Body::Short)),
            (1, Some(Body::Null)),
        ]);
        let label = self.dice.percent(25).then(|| self.fresh());
        Set {
            label,
            body,
            version: self.dice.percent(80).then(|| self.dice.below(10_000)),
            ..Set::default()
        }
    }

    fn touch(&mut self, draft: &State) -> Vec<Op> {
        let table = self.dice.index(self.schema.tables.len());
        let Some(key) = self.some_row(draft, table) else {
            return Vec::new();
        };
        let set = self.plain_set();
        self.recent.push((table, key.clone()));
        vec![Op::Update { table, key, set }]
    }

    fn reparent(&mut self, draft: &State) -> Vec<Op> {
        let Some(table) = self.dynamic_table() else {
            return Vec::new();
        };
        let Some(key) = self.some_row(draft, table) else {
            return Vec::new();
        };
        let Some((tie, then)) = self.some_tie(draft, table) else {
            return Vec::new();
        };
        let in_key = self.schema.tables[table]
            .edge
            .as_ref()
            .and_then(|edge| edge.in_key);
        let mut set = if self.dice.percent(40) {
            self.plain_set()
        } else {
            Set::default()
        };
        set.tie = Some(tie);
        let mut now = key.clone();
        if let (Some(place), Some(tie)) = (in_key, tie) {
            now[place] = tie;
            if draft.tables[table].contains_key(&now) {
                return Vec::new();
            }
            set.key = Some(now.clone());
        }
        self.recent.push((table, now));
        std::iter::once(Op::Update { table, key, set })
            .chain(then)
            .collect()
    }

    fn rekey(&mut self, draft: &State) -> Vec<Op> {
        let Some(table) = self.dynamic_table() else {
            return Vec::new();
        };
        let of = &self.schema.tables[table];
        let Some(key) = self
            .some_row(draft, table)
            .filter(|_| of.numbered != Numbered::Always)
        else {
            return Vec::new();
        };
        let stays = |(child, edge): (usize, &crate::schema::Edge)| {
            edge.foreign_key.is_some_and(|foreign| !foreign.cascade)
                && !draft.hanging(child, key[0]).is_empty()
        };
        if self.schema.children(table).any(stays) {
            return Vec::new();
        }
        let tie = draft.tables[table].get(&key).and_then(|row| row.tie);
        let mut set = if self.dice.percent(40) {
            self.plain_set()
        } else {
            Set::default()
        };
        let new = self.reused_key(draft, table, tie);
        let new = new.unwrap_or_else(|| self.new_key(table, tie));
        self.freed.push((table, key.clone()));
        self.recent.push((table, new.clone()));
        set.key = Some(new);
        vec![Op::Update { table, key, set }]
    }

    fn delete(&mut self, draft: &State) -> Vec<Op> {
        let Some(table) = self.dynamic_table() else {
            return Vec::new();
        };
        let Some(key) = self.some_row(draft, table) else {
            return Vec::new();
        };
        let mut ops = Vec::new();
        self.delete_with_children(draft, table, &key, &mut ops);
        for op in &ops {
            if let Op::Delete { table, key } = op {
                self.freed.push((*table, key.clone()));
            }
        }
        // A row that comes back under its old key, in the same transaction.
        if self.schema.tables[table].role == Role::Leaf && self.dice.percent(15) {
            let tie = draft.tables[table].get(&key).and_then(|row| row.tie);
            let row = self.row(table, tie);
            self.recent.push((table, key.clone()));
            ops.push(Op::Insert {
                table,
                rows: vec![(key, row)],
            });
        }
        ops
    }

    /// The deletion of a row, behind those that a foreign key asks for first.
    fn delete_with_children(&self, draft: &State, table: usize, key: &Key, ops: &mut Vec<Op>) {
        for (child, edge) in self.schema.children(table) {
            if edge.foreign_key.is_none() {
                continue;
            }
            let forbids = edge.foreign_key.is_some_and(|foreign| !foreign.cascade);
            for (below, _) in draft.hanging(child, key[0]) {
                let before = ops.len();
                self.delete_with_children(draft, child, &below, ops);
                // What cascades needs no statement of its own, unless it is forbidden further down.
                if !forbids && ops.len() == before + 1 {
                    ops.pop();
                }
            }
        }
        ops.push(Op::Delete {
            table,
            key: key.clone(),
        });
    }

    fn swap(&mut self, draft: &State) -> Vec<Op> {
        let table = self.dice.index(self.schema.tables.len());
        let (Some(one), Some(other)) = (self.some_row(draft, table), self.some_row(draft, table))
        else {
            return Vec::new();
        };
        if one == other {
            return Vec::new();
        }
        let label = |key: &Key| draft.tables[table].get(key).map(|row| row.label);
        let (Some(first), Some(second)) = (label(&one), label(&other)) else {
            return Vec::new();
        };
        vec![Op::Swap {
            table,
            keys: [one, other],
            labels: [first, second],
        }]
    }

    fn touch_all(&mut self, _: &State) -> Vec<Op> {
        let table = self.dice.index(self.schema.tables.len());
        let version = self.dice.below(10_000);
        vec![Op::UpdateAll { table, version }]
    }

    /// What the rules forbid during a move of the organization's own spine, and the same of another
    /// tenant's, which is nobody's business.
    fn of_the_spine(&mut self, draft: &State) -> Vec<Op> {
        let statics: Vec<usize> = (0..self.schema.tables.len())
            .filter(|&at| self.schema.tables[at].role == Role::Static)
            .collect();
        let Some(&table) = self.dice.pick(&statics) else {
            return Vec::new();
        };
        match self.dice.below(7) {
            0..3 => {
                let Some(key) = self.some_row(draft, table) else {
                    return Vec::new();
                };
                // Nothing may hang on it: rows of other stores would be left without a word.
                let hangs = |(child, _): (usize, _)| !draft.hanging(child, key[0]).is_empty();
                if self.schema.children(table).any(hangs) {
                    return Vec::new();
                }
                vec![Op::Delete { table, key }]
            }
            _ => {
                let Some((tie, _)) = self.some_tie(draft, table) else {
                    return Vec::new();
                };
                let row = self.row(table, tie);
                let key = self.new_key(table, tie);
                vec![Op::Insert {
                    table,
                    rows: vec![(key, row)],
                }]
            }
        }
    }

    /// A small transaction that begins and commits while another is open, and needs no lock of its.
    fn beside(&mut self, ops: &[Op]) -> Option<(Vec<Op>, usize)> {
        let touched = Touched::by(self.schema, &self.state, ops)?;
        let mut draft = self.state.clone();
        let mut beside = Vec::new();
        self.recent.clear();
        for _ in 0..6 {
            let rolled = self.roll_op(&draft, false);
            if !rolled.is_empty()
                && rolled
                    .iter()
                    .all(|op| touched.leaves_alone(self.schema, op))
            {
                for op in rolled {
                    draft.apply(self.schema, &op);
                    beside.push(op);
                }
            }
        }
        (!beside.is_empty()).then(|| (beside, self.dice.between(1, ops.len() as u32) as usize))
    }
}

/// What a transaction holds locks on.
struct Touched {
    rows: BTreeSet<(usize, Key)>,
    /// Rows of which nothing was changed that a foreign key may ask for.
    lightly: BTreeSet<(usize, Key)>,
}

impl Touched {
    /// None if it holds a lock on too much.
    fn by(schema: &Schema, state: &State, ops: &[Op]) -> Option<Self> {
        let mut touched = Self {
            rows: BTreeSet::new(),
            lightly: BTreeSet::new(),
        };
        let mut draft = state.clone();
        for op in ops {
            let before = draft.clone();
            draft.apply(schema, op);
            if let Op::Undone(ops) = op {
                touched.undone(schema, &draft, ops);
            }
            match op {
                Op::UpdateAll { .. } | Op::Truncate { .. } => return None,
                Op::Update { table, key, set } => {
                    let light = set.key.is_none()
                        && set.label.is_none()
                        && schema.tables[*table].identity != Identity::Index;
                    let at = (*table, key.clone());
                    if light && !touched.rows.contains(&at) {
                        touched.lightly.insert(at.clone());
                    } else {
                        touched.lightly.remove(&at);
                    }
                    touched.rows.insert(at);
                    if light {
                        continue;
                    }
                }
                Op::Swap { table, keys, .. } => {
                    for key in keys {
                        touched.rows.insert((*table, key.clone()));
                        touched.lightly.remove(&(*table, key.clone()));
                    }
                }
                _ => {}
            }
            for (table, (old, new)) in before.tables.iter().zip(&draft.tables).enumerate() {
                for key in old.keys().chain(new.keys()) {
                    if old.get(key) != new.get(key) {
                        touched.rows.insert((table, key.clone()));
                        touched.lightly.remove(&(table, key.clone()));
                    }
                }
            }
        }
        Some(touched)
    }

    /// What is undone holds no lock any more, but must not meet a key that came meanwhile.
    fn undone(&mut self, schema: &Schema, state: &State, ops: &[Op]) {
        let mut draft = state.clone();
        for op in ops {
            draft.apply(schema, op);
        }
        for (table, (old, new)) in state.tables.iter().zip(&draft.tables).enumerate() {
            let keys = old.keys().chain(new.keys());
            let changed = keys.filter(|key| old.get(*key) != new.get(*key));
            self.rows.extend(changed.map(|key| (table, key.clone())));
        }
    }

    fn leaves_alone(&self, schema: &Schema, op: &Op) -> bool {
        let free = |table: usize, key: &Key| !self.rows.contains(&(table, key.clone()));
        // A row that names a parent holds it, unless there is no foreign key.
        let may_name = |table: usize, tie: Option<u32>| {
            let Some(edge) = &schema.tables[table].edge else {
                return true;
            };
            let Some(tie) = tie.filter(|_| edge.foreign_key.is_some()) else {
                return true;
            };
            let parent = (edge.parent, vec![tie]);
            !self.rows.contains(&parent) || self.lightly.contains(&parent)
        };
        match op {
            Op::Insert { table, rows } => rows
                .iter()
                .all(|(key, row)| free(*table, key) && may_name(*table, row.tie)),
            Op::Update { table, key, set } => {
                let of = &schema.tables[*table];
                let plain =
                    set.key.is_none() && set.label.is_none() && of.identity != Identity::Index;
                let ties = set.tie.is_none_or(|tie| may_name(*table, tie));
                free(*table, key)
                    && ties
                    && (of.role == Role::Leaf || plain)
                    && set.key.as_ref().is_none_or(|key| free(*table, key))
            }
            Op::Delete { table, key } => {
                schema.tables[*table].role == Role::Leaf && free(*table, key)
            }
            Op::Swap { .. } | Op::UpdateAll { .. } | Op::Truncate { .. } | Op::Undone(_) => false,
        }
    }
}
