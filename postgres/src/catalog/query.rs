//! The queries of the catalog, each beside what it fills.

use std::collections::{BTreeMap, HashMap};

use monarch_config::{Scope, Table};
use monarch_model::TableName;
use tokio_postgres::{GenericClient, Row};

use super::relation::{
    Column, FIRST_USER_OID, Generated, Identity, Leaf, ParentEdge, Relation, RelationKind,
    ReplicaIdentity, RowSecurity, UniqueIndex, UserType,
};
use crate::{Doing, Result};

type Relations = BTreeMap<TableName, Relation>;
/// What reading a row's columns gives.
type Read<T> = std::result::Result<T, tokio_postgres::Error>;

/// The server's major version.
pub(super) async fn major<C: GenericClient + Sync>(client: &C) -> Result<i32> {
    let doing = "read the server's version";
    let row = client
        .query_one(
            "select current_setting('server_version_num')::int4 / 10000",
            &[],
        )
        .await
        .doing(doing)?;
    row.try_get(0).doing(doing)
}

/// The tables themselves, still without columns, indexes and leaves.
pub(super) async fn relations<C: GenericClient + Sync>(
    client: &C,
    tables: &[&Table],
) -> Result<Relations> {
    let doing = "read the catalog: tables";
    let schemas: Vec<&str> = tables.iter().map(|table| table.name.schema()).collect();
    let names: Vec<&str> = tables.iter().map(|table| table.name.relation()).collect();
    let rows = client
        .query(
            "select wanted.place::int8 as place, c.oid, c.relkind::text as kind,
                    c.relpersistence::text as persistence, c.relreplident::text as identity,
                    c.relrowsecurity, c.relforcerowsecurity,
                    pg_catalog.row_security_active(c.oid) as binds_us,
                    case c.relkind when 'p' then 0 else greatest(c.reltuples, 0) end::float4
                      as rows_estimate, c.relfilenode
             from unnest($1::text[], $2::text[])
                  with ordinality as wanted(schema_name, table_name, place)
             join pg_catalog.pg_namespace n on n.nspname = wanted.schema_name
             join pg_catalog.pg_class c
               on c.relnamespace = n.oid and c.relname = wanted.table_name",
            &[&schemas, &names],
        )
        .await
        .doing(doing)?;
    let mut relations = Relations::new();
    for row in rows {
        let place: i64 = row.try_get("place").doing(doing)?;
        let wanted = usize::try_from(place - 1)
            .ok()
            .and_then(|at| tables.get(at));
        if let Some(table) = wanted {
            let relation = relation(&table.name, &row).doing(doing)?;
            relations.insert(table.name.clone(), relation);
        }
    }
    Ok(relations)
}

fn relation(table: &TableName, row: &Row) -> Read<Relation> {
    Ok(Relation {
        table: table.clone(),
        oid: row.try_get("oid")?,
        kind: kind(row.try_get("kind")?),
        columns: Vec::new(),
        types: Vec::new(),
        replica_identity: identity(row.try_get("identity")?),
        primary_key: Vec::new(),
        unique_indexes: Vec::new(),
        edge: None,
        row_security: row_security(row)?,
        unlogged: row.try_get::<_, &str>("persistence")? != "p",
        leaves: Vec::new(),
        rows_estimate: row.try_get("rows_estimate")?,
        file_node: row.try_get("relfilenode")?,
    })
}

fn row_security(row: &Row) -> Read<RowSecurity> {
    Ok(RowSecurity {
        enabled: row.try_get("relrowsecurity")?,
        forced: row.try_get("relforcerowsecurity")?,
        binds_us: row.try_get("binds_us")?,
    })
}

fn kind(relkind: &str) -> RelationKind {
    match relkind {
        "r" => RelationKind::Ordinary,
        "p" => RelationKind::Partitioned,
        _ => RelationKind::Other,
    }
}

/// The columns of an index identity are filled in when the indexes are read.
fn identity(relreplident: &str) -> ReplicaIdentity {
    match relreplident {
        "d" => ReplicaIdentity::Default,
        "f" => ReplicaIdentity::Full,
        "i" => ReplicaIdentity::Index {
            columns: Vec::new(),
        },
        _ => ReplicaIdentity::Nothing,
    }
}

/// Partitions and inheriting tables, at every depth.
pub(super) async fn leaves<C: GenericClient + Sync>(
    client: &C,
    relations: &mut Relations,
) -> Result<()> {
    let doing = "read the catalog: partitions";
    let by_oid = by_oid(relations);
    let oids: Vec<u32> = by_oid.keys().copied().collect();
    let rows = client
        .query(
            "with recursive tree(top, oid, above) as (
               select i.inhparent, i.inhrelid, i.inhparent
               from pg_catalog.pg_inherits i where i.inhparent = any($1::oid[])
               union
               select tree.top, i.inhrelid, i.inhparent
               from tree join pg_catalog.pg_inherits i on i.inhparent = tree.oid)
             select tree.top, c.oid, n.nspname, c.relname, c.relkind::text as kind,
                    c.relispartition,
                    coalesce(pg_catalog.pg_get_expr(c.relpartbound, c.oid), '') as bound,
                    c.relpersistence::text as persistence, c.relreplident::text as identity,
                    c.relrowsecurity, c.relforcerowsecurity,
                    pg_catalog.row_security_active(c.oid) as binds_us,
                    greatest(c.reltuples, 0)::float4 as rows_estimate, c.relfilenode
             from tree
             join pg_catalog.pg_class c on c.oid = tree.oid
             join pg_catalog.pg_namespace n on n.oid = c.relnamespace
             where c.relkind not in ('i', 'I')
             order by n.nspname, c.relname",
            &[&oids],
        )
        .await
        .doing(doing)?;
    for row in rows {
        let top: u32 = row.try_get("top").doing(doing)?;
        let Some(relation) = by_oid.get(&top).and_then(|name| relations.get_mut(name)) else {
            continue;
        };
        let rows_estimate: f32 = row.try_get("rows_estimate").doing(doing)?;
        if let Some(leaf) = leaf(&row).doing(doing)? {
            if leaf.kind != RelationKind::Partitioned {
                relation.rows_estimate += rows_estimate;
            }
            relation.unlogged |= leaf.unlogged;
            relation.leaves.push(leaf);
        }
    }
    Ok(())
}

fn leaf(row: &Row) -> Read<Option<Leaf>> {
    let Ok(table) = TableName::new(row.try_get("nspname")?, row.try_get("relname")?) else {
        return Ok(None);
    };
    Ok(Some(Leaf {
        table,
        oid: row.try_get("oid")?,
        kind: kind(row.try_get("kind")?),
        is_partition: row.try_get("relispartition")?,
        bound: row.try_get("bound")?,
        replica_identity: identity(row.try_get("identity")?),
        primary_key: Vec::new(),
        unlogged: row.try_get::<_, &str>("persistence")? != "p",
        row_security: row_security(row)?,
        file_node: row.try_get("relfilenode")?,
    }))
}

/// The live columns of each table.
pub(super) async fn columns<C: GenericClient + Sync>(
    client: &C,
    relations: &mut Relations,
) -> Result<()> {
    let doing = "read the catalog: columns";
    let by_oid = by_oid(relations);
    let oids: Vec<u32> = by_oid.keys().copied().collect();
    let rows = client
        .query(
            "select a.attrelid, a.attname, a.attnum, a.attnotnull, a.attcollation, a.atttypid,
                    a.atttypmod,
                    pg_catalog.format_type(a.atttypid, a.atttypmod) as type_name,
                    a.attgenerated::text as generated, a.attidentity::text as identity,
                    a.atthasdef, coalesce((select l.collisdeterministic
                              from pg_catalog.pg_collation l where l.oid = a.attcollation), true)
                      as is_deterministic,
                    case
                      when plain.oid in ('pg_catalog.int2'::regtype, 'pg_catalog.int4'::regtype)
                        then 'pg_catalog.int8'
                      when plain.oid in ('pg_catalog.varchar'::regtype, 'pg_catalog.name'::regtype)
                        then 'pg_catalog.text'
                      else (select pg_catalog.format('%I.%I', n.nspname, t.typname)
                            from pg_catalog.pg_type t
                            join pg_catalog.pg_namespace n on n.oid = t.typnamespace
                            where t.oid = plain.oid)
                    end as key_type,
                    coalesce((select pg_catalog.format('operator(%I.%s)', n.nspname, o.oprname)
                              from pg_catalog.pg_opclass c
                              join pg_catalog.pg_am m on m.oid = c.opcmethod and m.amname = 'btree'
                              join pg_catalog.pg_amop p
                                on p.amopfamily = c.opcfamily and p.amopstrategy = 3
                                and p.amoplefttype = plain.oid and p.amoprighttype = plain.oid
                              join pg_catalog.pg_operator o on o.oid = p.amopopr
                              join pg_catalog.pg_namespace n on n.oid = o.oprnamespace
                              where c.opcdefault and c.opcintype = plain.oid
                                and n.nspname <> 'pg_catalog' limit 1), '=') as equals,
                    (select pg_catalog.format('%I.%I', n.nspname, l.collname)
                     from pg_catalog.pg_collation l
                     join pg_catalog.pg_namespace n on n.oid = l.collnamespace
                     where l.oid = a.attcollation) as collation
             from pg_catalog.pg_attribute a
             cross join lateral (
               with recursive base(oid, below) as (
                 select t.oid, t.typbasetype from pg_catalog.pg_type t where t.oid = a.atttypid
                 union all
                 select t.oid, t.typbasetype
                 from base join pg_catalog.pg_type t on t.oid = base.below)
               select base.oid from base where base.below = 0) as plain
             where a.attrelid = any($1::oid[]) and a.attnum > 0 and not a.attisdropped
             order by a.attrelid, a.attnum",
            &[&oids],
        )
        .await
        .doing(doing)?;
    for row in rows {
        let oid: u32 = row.try_get("attrelid").doing(doing)?;
        if let Some(relation) = by_oid.get(&oid).and_then(|name| relations.get_mut(name)) {
            relation.columns.push(column(&row).doing(doing)?);
        }
    }
    Ok(())
}

fn column(row: &Row) -> Read<Column> {
    Ok(Column {
        name: row.try_get("attname")?,
        type_name: row.try_get("type_name")?,
        type_oid: row.try_get("atttypid")?,
        type_modifier: row.try_get("atttypmod")?,
        key_type: row.try_get("key_type")?,
        equals: row.try_get("equals")?,
        collation_oid: row.try_get("attcollation")?,
        collation: row.try_get("collation")?,
        is_deterministic: row.try_get("is_deterministic")?,
        has_default: row.try_get("atthasdef")?,
        not_null: row.try_get("attnotnull")?,
        generated: match row.try_get("generated")? {
            "s" => Generated::Stored,
            "v" => Generated::Virtual,
            _ => Generated::No,
        },
        identity: match row.try_get("identity")? {
            "a" => Identity::Always,
            "d" => Identity::ByDefault,
            _ => Identity::No,
        },
        position: row.try_get("attnum")?,
    })
}

/// The types that are not built in, of columns and of what these are made of.
pub(super) async fn types<C: GenericClient + Sync>(
    client: &C,
    relations: &mut Relations,
) -> Result<()> {
    let doing = "read the catalog: types";
    let by_oid = by_oid(relations);
    let oids: Vec<u32> = by_oid.keys().copied().collect();
    let rows = client
        .query(
            "with recursive used(relation, oid) as (
               select a.attrelid, a.atttypid from pg_catalog.pg_attribute a
               where a.attrelid = any($1::oid[]) and a.attnum > 0 and not a.attisdropped
                 and a.atttypid >= $2
               union
               select used.relation, part.oid
               from used
               join pg_catalog.pg_type t on t.oid = used.oid
               cross join lateral (
                 select t.typelem as oid
                 union all select t.typbasetype
                 union all select r.rngsubtype from pg_catalog.pg_range r
                  where r.rngtypid = t.oid or r.rngmultitypid = t.oid
                 union all select a.atttypid from pg_catalog.pg_attribute a
                  where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0
                    and not a.attisdropped) as part
               where part.oid >= $2)
             select used.relation, pg_catalog.format_type(t.oid, null) as type_name,
                    array(select e.enumlabel::text from pg_catalog.pg_enum e
                          where e.enumtypid = t.oid order by e.enumsortorder) as labels,
                    pg_catalog.concat_ws(' ',
                      case when t.typbasetype <> 0
                        then pg_catalog.format_type(t.typbasetype, t.typtypmod) end,
                      case when t.typnotnull then 'not null' end,
                      (select pg_catalog.string_agg(pg_catalog.pg_get_constraintdef(c.oid), ' '
                                order by pg_catalog.pg_get_constraintdef(c.oid))
                       from pg_catalog.pg_constraint c
                       where c.contypid = t.oid and c.contype = 'c'),
                      (select pg_catalog.format_type(r.rngsubtype, null)
                       from pg_catalog.pg_range r
                       where r.rngtypid = t.oid or r.rngmultitypid = t.oid),
                      (select pg_catalog.string_agg(a.attname || ' ' ||
                                pg_catalog.format_type(a.atttypid, a.atttypmod), ', '
                                order by a.attnum)
                       from pg_catalog.pg_attribute a
                       where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0
                         and not a.attisdropped)) as made_of
             from used join pg_catalog.pg_type t on t.oid = used.oid
             where t.typcategory <> 'A' or t.typtype = 'd'
             order by used.relation, type_name",
            &[&oids, &FIRST_USER_OID],
        )
        .await
        .doing(doing)?;
    for row in rows {
        let oid: u32 = row.try_get("relation").doing(doing)?;
        if let Some(relation) = by_oid.get(&oid).and_then(|name| relations.get_mut(name)) {
            relation.types.push(user_type(&row).doing(doing)?);
        }
    }
    Ok(())
}

fn user_type(row: &Row) -> Read<UserType> {
    Ok(UserType {
        name: row.try_get("type_name")?,
        labels: row.try_get("labels")?,
        made_of: row.try_get("made_of")?,
    })
}

/// Unique indexes of the tables, and what they mean for replica identities, of leaves too.
pub(super) async fn indexes<C: GenericClient + Sync>(
    client: &C,
    relations: &mut Relations,
) -> Result<()> {
    let doing = "read the catalog: unique indexes";
    let oids: Vec<u32> = relations
        .values()
        .flat_map(|relation| {
            let leaves = relation.leaves.iter().map(|leaf| leaf.oid);
            std::iter::once(relation.oid).chain(leaves)
        })
        .collect();
    let rows = client
        .query(
            "select i.indrelid, c.relname, i.indisprimary, i.indisreplident,
                    not i.indimmediate as deferrable, i.indpred is not null as partial,
                    i.indexprs is not null as on_expression,
                    i.indisvalid and i.indisready and i.indislive as valid,
                    array(select coalesce(a.attname::text, '')
                          from unnest((i.indkey::int2[])[0:i.indnkeyatts - 1])
                               with ordinality as key(number, place)
                          left join pg_catalog.pg_attribute a
                            on a.attrelid = i.indrelid and a.attnum = key.number
                          order by key.place) as columns
             from pg_catalog.pg_index i
             join pg_catalog.pg_class c on c.oid = i.indexrelid
             where i.indisunique and not i.indisexclusion and i.indrelid = any($1::oid[])
             order by c.relname",
            &[&oids],
        )
        .await
        .doing(doing)?;
    let mut by_table: HashMap<u32, Vec<UniqueIndex>> = HashMap::new();
    for row in rows {
        let oid: u32 = row.try_get("indrelid").doing(doing)?;
        let index = unique_index(&row).doing(doing)?;
        by_table.entry(oid).or_default().push(index);
    }
    for relation in relations.values_mut() {
        for leaf in &mut relation.leaves {
            let indexes = by_table.remove(&leaf.oid).unwrap_or_default();
            keys(&indexes, &mut leaf.primary_key, &mut leaf.replica_identity);
        }
        let indexes = by_table.remove(&relation.oid).unwrap_or_default();
        keys(
            &indexes,
            &mut relation.primary_key,
            &mut relation.replica_identity,
        );
        relation.unique_indexes = indexes;
    }
    Ok(())
}

fn unique_index(row: &Row) -> Read<UniqueIndex> {
    Ok(UniqueIndex {
        name: row.try_get("relname")?,
        columns: row.try_get("columns")?,
        primary: row.try_get("indisprimary")?,
        partial: row.try_get("partial")?,
        on_expression: row.try_get("on_expression")?,
        deferrable: row.try_get("deferrable")?,
        valid: row.try_get("valid")?,
        replica_identity: row.try_get("indisreplident")?,
    })
}

/// The edges to dynamic parents, and whether foreign keys hold them. A key is no help while one of its
/// triggers is off, on either table or on a partition.
pub(super) async fn edges<C: GenericClient + Sync>(
    client: &C,
    tables: &[&Table],
    relations: &mut Relations,
) -> Result<()> {
    let doing = "read the catalog: foreign keys of edges";
    let (mut asked, mut children, mut parents, mut columns) = (vec![], vec![], vec![], vec![]);
    for table in tables {
        let Scope::ByDynamic { column, parent } = &table.scope else {
            continue;
        };
        if let (Some(child), Some(above)) = (relations.get(&table.name), relations.get(parent)) {
            children.push(child.oid);
            parents.push(above.oid);
            columns.push(column.as_str());
            asked.push((&table.name, parent));
        }
    }
    let rows = client
        .query(
            "with recursive edge as (
               select * from unnest($1::oid[], $2::oid[], $3::text[]) with ordinality
                 as t(child, parent, col, place)),
             held(place, top, oid) as (
               select edge.place, c.oid, c.oid
               from edge
               join pg_catalog.pg_constraint c
                 on c.contype = 'f' and c.conrelid = edge.child and c.confrelid = edge.parent
                and c.convalidated and pg_catalog.array_length(c.conkey, 1) = 1
               join pg_catalog.pg_attribute a
                 on a.attrelid = c.conrelid and a.attnum = c.conkey[1] and a.attname = edge.col
               union
               select held.place, held.top, c.oid
               from held join pg_catalog.pg_constraint c on c.conparentid = held.oid)
             select exists (
               select from held where held.place = edge.place group by held.top
               having pg_catalog.bool_and(not exists (
                 select from pg_catalog.pg_trigger t
                 where t.tgconstraint = held.oid and t.tgenabled not in ('O', 'A'))))
             from edge order by edge.place",
            &[&children, &parents, &columns],
        )
        .await
        .doing(doing)?;
    for ((row, (table, parent)), column) in rows.iter().zip(asked).zip(columns) {
        let enforced = row.try_get(0).doing(doing)?;
        if let Some(relation) = relations.get_mut(table) {
            relation.edge = Some(ParentEdge {
                column: column.to_owned(),
                parent: parent.clone(),
                enforced,
            });
        }
    }
    Ok(())
}

/// A deferrable key or an index that was dropped identifies nothing in the log.
fn keys(indexes: &[UniqueIndex], primary_key: &mut Vec<String>, identity: &mut ReplicaIdentity) {
    if let Some(primary) = indexes.iter().find(|index| index.primary) {
        primary_key.clone_from(&primary.columns);
        if primary.deferrable && *identity == ReplicaIdentity::Default {
            *identity = ReplicaIdentity::Nothing;
        }
    }
    if let ReplicaIdentity::Index { columns } = identity {
        match indexes
            .iter()
            .find(|index| index.replica_identity && index.valid)
        {
            Some(index) => columns.clone_from(&index.columns),
            None => *identity = ReplicaIdentity::Nothing,
        }
    }
}

fn by_oid(relations: &Relations) -> HashMap<u32, TableName> {
    relations
        .values()
        .map(|relation| (relation.oid, relation.table.clone()))
        .collect()
}
