//! The SQL of a drain, and what its rows become.
//!
//! Every statement walks one of two indexes, whatever the table's statistics say: a queue is empty
//! when it is analyzed and has ten million rows an hour later. Statements are therefore planned anew
//! each time, with scans of the whole table discouraged, and ranges are written as comparisons of
//! rows that begin with the shard, which the primary key cannot serve.

use tokio_postgres::types::{ToSql, Type};

use crate::message::Shard;
use crate::silo::{Silo, Target};
use crate::table::Table;

/// What every transaction of a drain begins with. A handler may take longer than a role allows a
/// transaction to idle.
pub(crate) const SETTINGS: &str = "
    set local enable_seqscan = off;
    set local enable_bitmapscan = off;
    set local enable_sort = off;
    set local jit = off;
    set local idle_in_transaction_session_timeout = 0;";

/// A parameter and its type.
pub(crate) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// The statements of one table.
#[derive(Debug)]
pub(crate) struct Statements {
    /// Takes a shard that is due and puts its head on backoff. Parameters: the shard, the shard's
    /// lock. A row: whether the lock was had; if the shard was taken, its delay in seconds.
    pub(crate) take: String,
    /// Locks the head. Parameters: the shard.
    pub(crate) lock_head: String,
    /// The next messages of a shard. Parameters: the shard, the highest id of a head, how many rows
    /// to look at, how many messages to choose, how many bytes of payload to bring.
    pub(crate) choose: String,
    /// Deletes rows by id. Parameters: the ids.
    pub(crate) delete: String,
    /// Puts a shard's head on backoff. Parameters: the shard, the delay in seconds.
    pub(crate) put_off_head: String,
    /// Puts a shard on backoff. Parameters: the shard, the delay in seconds, how many rows.
    pub(crate) put_off_shard: String,
    /// Undoes the head's backoff. Parameters: the shard.
    pub(crate) make_due: String,
    /// The next shards in the order of the index, the head of each, whether it is due, and whether it
    /// has a message in a range of ids. Parameters: a shard, an id, how many, the lowest and the
    /// highest id.
    pub(crate) shards: String,
    /// Whether a shard has a message up to an id. Parameters: the shard, the id.
    pub(crate) head_upto: String,
    /// The highest id of a shard. Parameters: the shard.
    pub(crate) highest: String,
    /// The lowest and the highest id of all.
    pub(crate) ids: String,
}

/// Twice the last delay, at least two seconds (the last counts as one at least), at most an hour.
/// Others may have written an instant that is not finite; it says nothing of a delay.
const NEXT_DELAY: &str = "case when isfinite(scheduled_for) and isfinite(scheduled_from) \
     then least(2 * greatest(scheduled_for - scheduled_from, interval '1 second'), \
                interval '1 hour') \
     else interval '2 seconds' end";

/// A schedule further away than the longest delay was written by a clock that was wrong.
pub(crate) const DUE: &str = "(scheduled_for <= statement_timestamp() \
                              or scheduled_for > statement_timestamp() + interval '1 hour')";

/// A shard as it stands in statements: its columns, and its parameters.
struct Keys {
    /// `"region_name", shard_scope, shard_identifier`
    columns: Vec<String>,
    /// `$1::text`, `$2::int4`, `$3::int8`
    values: Vec<String>,
    /// The number of the first parameter behind them.
    next: usize,
}

/// Which way an index is walked.
#[derive(Clone, Copy)]
enum Way {
    Up,
    Down,
}

impl Keys {
    fn new<S: Silo>(table: &Table<S>) -> Self {
        let types = if S::TARGETED {
            &["text", "int4", "int8"][..]
        } else {
            &["int4", "int8"]
        };
        let values = types.iter().enumerate();
        let values: Vec<String> = values
            .map(|(at, kind)| format!("${}::{kind}", at + 1))
            .collect();
        Self {
            columns: table.shard_columns(),
            next: values.len() + 1,
            values,
        }
    }

    /// The rows of the shard in the order of their ids.
    fn all(&self, way: Way) -> String {
        in_order(&self.columns, &self.values, way)
    }

    /// `shard_scope = $1::int4 and …`
    fn equal(&self) -> String {
        equal(&self.columns, &self.values)
    }
}

fn equal(columns: &[String], values: &[String]) -> String {
    let pairs = columns.iter().zip(values);
    let pairs: Vec<String> = pairs
        .map(|(column, value)| format!("{column} = {value}"))
        .collect();
    pairs.join(" and ")
}

/// The rows of a shard in the order of their ids, so written that an index by shard and id alone can
/// serve it, and stops at the shard's end.
///
/// Were every column compared for equality, the order would be that of the id alone, and the primary
/// key's scan of all shards would look cheap. Were the end of the range a comparison of rows, the
/// scan would not stop there: the server takes only the first column of such a comparison for an end.
fn in_order(columns: &[String], values: &[String], way: Way) -> String {
    let (Some((column, before)), Some((value, values))) =
        (columns.split_last(), values.split_last())
    else {
        return String::new();
    };
    let before = equal(before, values);
    match way {
        Way::Up => format!(
            "where {before} and ({column}, id) >= ({value}, {low}) and {column} <= {value} \
             order by {column}, id",
            low = i64::MIN
        ),
        Way::Down => format!(
            "where {before} and ({column}, id) <= ({value}, {high}) and {column} >= {value} \
             order by {column} desc, id desc",
            high = i64::MAX
        ),
    }
}

impl Statements {
    pub(crate) fn new<S: Silo>(table: &Table<S>) -> Self {
        let name = table.name().sql();
        let keys = Keys::new(table);
        let n = keys.next;
        let all = keys.all(Way::Up);
        let head = format!("select id from {name} {all} limit 1");
        let delay = format!("make_interval(secs => ${n}::float8)");
        let put_off = format!(
            "update {name} set scheduled_from = statement_timestamp(), \
             scheduled_for = statement_timestamp() + {delay}"
        );
        Self {
            take: take(&name, &head, n),
            lock_head: format!("{} for update", lockable(&name, &all)),
            choose: choose(&name, &keys),
            delete: format!("delete from {name} where id = any($1::int8[])"),
            put_off_head: format!("{put_off} where id = ({head}) returning id"),
            put_off_shard: format!(
                "{put_off} where id = any(array(select id from {name} {all} limit ${}::int8))",
                n + 1
            ),
            make_due: format!(
                "update {name} set scheduled_for = '2016-08-01 00:00:00+00' where id = ({head})"
            ),
            shards: shards(&name, &keys),
            head_upto: format!("select from ({head}) as head where id <= ${n}::int8"),
            highest: format!(
                "select id::int8 from {name} {} limit 1",
                keys.all(Way::Down)
            ),
            ids: format!("select min(id), max(id) from {name}"),
        }
    }
}

impl Statements {
    /// The statements of a scheduled visit in their order, each with a comment.
    pub(super) fn described(&self) -> String {
        let visit = [
            (
                "The shards and whether each is due. Parameters: a shard to begin behind, an id, how \
                 many, the lowest and the highest id of the partition",
                &self.shards,
            ),
            (
                "Takes a shard that is due and puts its head off. Parameters: the shard, its lock",
                &self.take,
            ),
            ("Locks the head. Parameters: the shard", &self.lock_head),
            (
                "The next messages. Parameters: the shard, the highest id, rows to look at, messages \
                 to choose, bytes of payload",
                &self.choose,
            ),
            (
                "Deletes what was delivered. Parameters: the ids",
                &self.delete,
            ),
            (
                "Puts the next head off. Parameters: the shard, seconds",
                &self.put_off_head,
            ),
            (
                "Puts a shard off after a failure. Parameters: the shard, seconds, rows",
                &self.put_off_shard,
            ),
        ];
        let visit = visit.map(|(what, sql)| format!("-- {what}\n{sql};\n"));
        visit.join("\n")
    }
}

fn lockable(name: &str, all: &str) -> String {
    format!("select extract(epoch from {NEXT_DELAY})::float8, {DUE} from {name} {all} limit 1")
}

/// The lock of the shard is asked for before its head is looked at: the condition does not depend on
/// a row, so it is met first and once.
fn take(name: &str, head: &str, n: usize) -> String {
    let head = head.replacen(" where ", " where (select locked from lock) and ", 1);
    format!(
        "with lock as materialized (
            select pg_try_advisory_xact_lock(${n}::int8) as locked
        ), taken as (
            update {name} set scheduled_from = statement_timestamp(),
                scheduled_for = statement_timestamp() + {NEXT_DELAY}
            where id = ({head} for update nowait) and {DUE}
            returning extract(epoch from scheduled_for - scheduled_from)::float8 as delay_secs
        )
        select locked, (select delay_secs from taken) from lock"
    )
}

/// The groups of the first rows of a shard, by their lowest id; of each all ids that can be seen now,
/// which alone will be deleted, and the newest message.
fn choose(name: &str, keys: &Keys) -> String {
    let (equal, n) = (keys.equal(), keys.next);
    let first_rows = keys.all(Way::Up);
    let (rows, messages, bytes) = (n + 1, n + 2, n + 3);
    format!(
        "with head as materialized (
            select id, category, object_identifier from {name} {first_rows} limit ${rows}::int8
        ), chosen as (
            select category, object_identifier, min(id) as first_id
            from head where id <= ${n}::int8 group by category, object_identifier
            order by first_id limit ${messages}::int8
        ), message as materialized (
            select chosen.first_id, chosen.category, chosen.object_identifier, seen.ids,
                newest.payload::text as payload,
                {date_added} as date_added, {scheduled_for} as scheduled_for, {oldest} as oldest
            from chosen
            cross join lateral (
                select array_agg(id) as ids from (
                    select id from {name}
                    where {equal} and category = chosen.category
                        and object_identifier = chosen.object_identifier
                    order by id
                ) as seen
            ) as seen
            join {name} as newest on newest.id = seen.ids[cardinality(seen.ids)]
            join {name} as oldest on oldest.id = seen.ids[1]
        ), measured as (
            select *, sum(octet_length(payload)) over (
                order by first_id rows between unbounded preceding and 1 preceding) as before
            from message
        )
        select category::int4, object_identifier::int8, ids::int8[], payload, date_added,
            scheduled_for,
            greatest(extract(epoch from statement_timestamp() - oldest), 0)::float8 as queued_secs
        from measured
        where coalesce(before, 0) < ${bytes}::int8
        order by first_id",
        date_added = readable("newest.date_added"),
        scheduled_for = readable("newest.scheduled_for"),
        oldest = readable("oldest.date_added"),
    )
}

/// An instant that we can read, whatever others wrote.
fn readable(column: &str) -> String {
    format!("least(greatest({column}, '0001-01-01 00:00:00+00'), '9999-01-01 00:00:00+00')")
}

/// Skips from shard to shard, so that a shard costs two steps whatever its depth.
fn shards(name: &str, keys: &Keys) -> String {
    let n = keys.next;
    let (id, limit, low, high) = (n, n + 1, n + 2, n + 3);
    let (columns, values) = (keys.columns.join(", "), keys.values.join(", "));
    let of_walk = keys.columns.iter();
    let of_walk: Vec<String> = of_walk.map(|column| format!("walk.{column}")).collect();
    // From the lowest id of the partition on.
    let inside = in_order(&keys.columns, &of_walk, Way::Up)
        .replace(&i64::MIN.to_string(), &format!("${low}::int8"));
    format!(
        "with recursive walk as (
            select * from (
                select {columns}, id, scheduled_for, 1 as place from {name}
                where ({columns}, id) > ({values}, ${id}::int8)
                order by {columns}, id limit 1
            ) as first
            union all
            select next.*, walk.place + 1 from walk cross join lateral (
                select {columns}, id, scheduled_for from {name}
                where ({columns}, id) > ({of_walk}, {max})
                order by {columns}, id limit 1
            ) as next
            where walk.place < ${limit}::int4
        )
        select {columns}, id::int8, {DUE} as due, coalesce((
            select id <= ${high}::int8 from {name} {inside} limit 1
        ), false) as inside
        from walk order by place",
        of_walk = of_walk.join(", "),
        max = i64::MAX,
    )
}

impl<S: Silo> Shard<S> {
    /// The shard as the first parameters of a statement, `target` being its cell's name.
    pub(crate) fn parameters<'a>(&'a self, target: &'a Option<&'a str>) -> Vec<Parameter<'a>> {
        let mut parameters: Vec<Parameter<'a>> = Vec::with_capacity(6);
        if S::TARGETED {
            parameters.push((target, Type::TEXT));
        }
        parameters.push((&self.scope, Type::INT4));
        parameters.push((&self.identifier, Type::INT8));
        parameters
    }

    /// Its cell's name, for [`Self::parameters`].
    pub(crate) fn target_name(&self) -> Option<&str> {
        self.target.cell().map(|cell| cell.as_str())
    }

    /// The advisory lock that one drain of this shard holds at a time. Locking its head alone would
    /// not do: a lower id that commits late is a head that nobody has locked. Two shards may share a
    /// number; then they wait for each other, and no more.
    pub(crate) fn lock(&self, table: &Table<S>) -> i64 {
        let mut hash = Fnv::default();
        hash.write(table.name().name().as_bytes());
        hash.write(self.target_name().unwrap_or_default().as_bytes());
        hash.write(&self.scope.to_be_bytes());
        hash.write(&self.identifier.to_be_bytes());
        i64::from_be_bytes(hash.0.to_be_bytes())
    }
}

/// FNV-1a: processes of any version must agree on a lock's number.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn write(&mut self, bytes: &[u8]) {
        // The length in front, so that two fields do not run into each other.
        for byte in (bytes.len() as u64).to_be_bytes().iter().chain(bytes) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use monarch_harness::{PgVersion, fresh_name, shared};
    use tokio_postgres::Client;

    use super::*;
    use crate::silo::{Cell, CellName, Control, Here};

    /// A table with a million rows, its indexes built afterwards, which is quicker.
    async fn million<S: Silo>(version: PgVersion, target: &str) -> (Client, Table<S>) {
        let cluster = shared::cluster(version).await;
        let name = fresh_name("plans");
        cluster.create_database(&name).await.unwrap();
        let client = cluster.admin(&name).await.unwrap();
        let table = Table::<S>::default();
        let create = table.create_sql();
        let (bare, _) = create.split_once(';').unwrap();
        client.batch_execute(bare).await.unwrap();
        let fill = format!(
            "insert into {} (shard_scope, shard_identifier, category, object_identifier{}) \
             select n % 3, n % 50000, n % 7, n{} from generate_series(1, 1000000) n;",
            table.name().sql(),
            if S::TARGETED { ", region_name" } else { "" },
            if S::TARGETED { target } else { "" },
        );
        client.batch_execute(&fill).await.unwrap();
        table.create(&client).await.unwrap();
        client.batch_execute("analyze").await.unwrap();
        (client, table)
    }

    /// The plan of a statement as a drain's transaction has it, and how many pages it touched.
    async fn plan(client: &mut Client, sql: &str, parameters: &[Parameter<'_>]) -> (String, u64) {
        let transaction = client.transaction().await.unwrap();
        transaction.batch_execute(SETTINGS).await.unwrap();
        let explain = format!("explain (analyze, buffers) {sql}");
        let rows = transaction.query_typed(&explain, parameters).await.unwrap();
        let lines: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        // The first line of its kind counts what is below it, too.
        let buffers = lines.iter().find(|line| line.contains("Buffers: shared"));
        let pages = buffers.map_or(0, |line| {
            let counts = line
                .split([' ', '='])
                .filter_map(|word| word.parse::<u64>().ok());
            counts.sum()
        });
        (lines.join("\n"), pages)
    }

    /// However long the queue: an index, and no more pages than what is chosen stands on.
    async fn every_plan_walks_an_index<S: Silo>(shard: Shard<S>, version: PgVersion) {
        let (mut client, table) = million::<S>(version, ", 'de'").await;
        let statements = Statements::new(&table);
        let target = shard.target_name();
        let with = |more: &[Parameter<'static>]| {
            let mut parameters = shard.parameters(&target);
            parameters.extend_from_slice(more);
            parameters
        };
        let number: Parameter<'static> = (&500_000_i64, Type::INT8);
        let rows: Parameter<'static> = (&1_000_i64, Type::INT8);
        let messages: Parameter<'static> = (&500_i64, Type::INT8);
        let delay: Parameter<'static> = (&2.0_f64, Type::FLOAT8);
        let count: Parameter<'static> = (&100_i32, Type::INT4);
        let ids: Vec<i64> = (1..100).collect();
        let one = std::slice::from_ref;
        let all = [
            (&statements.take, with(one(&number))),
            (&statements.lock_head, with(&[])),
            (
                &statements.choose,
                with(&[number.clone(), rows, messages, number.clone()]),
            ),
            (&statements.delete, vec![(&ids as _, Type::INT8_ARRAY)]),
            (&statements.put_off_head, with(one(&delay))),
            (&statements.put_off_shard, with(&[delay, number.clone()])),
            (&statements.make_due, with(&[])),
            (&statements.head_upto, with(one(&number))),
            (
                &statements.shards,
                with(&[number.clone(), count, number.clone(), number]),
            ),
            (&statements.highest, with(&[])),
            (&statements.ids, vec![]),
        ];
        for (sql, parameters) in &all {
            let (plan, pages) = plan(&mut client, sql, parameters).await;
            assert!(!plan.contains("Seq Scan"), "{sql}\n{plan}");
            assert!(plan.contains("Index"), "{sql}\n{plan}");
            assert!(pages > 0 && pages < 3_000, "{pages} pages\n{sql}\n{plan}");
        }
    }

    #[tokio::test]
    async fn at_a_million_rows_every_query_of_a_cells_drain_walks_an_index() {
        let shard = Shard::<Cell> {
            target: Here,
            scope: 0,
            identifier: 42,
        };
        every_plan_walks_an_index(shard, PgVersion::V16).await;
    }

    #[tokio::test]
    async fn at_a_million_rows_every_query_of_controls_drain_walks_an_index() {
        let shard = Shard::<Control> {
            target: CellName::new("de").unwrap(),
            scope: 0,
            identifier: 42,
        };
        every_plan_walks_an_index(shard, PgVersion::V16).await;
    }
}
