//! The tables of a database, as far as a manifest is about them.

use std::collections::HashMap;

use monarch_model::{StoreName, TableName};
use monarch_postgres::{Doing as _, Result};
use tokio_postgres::{GenericClient, Row};

/// A database of a cell.
#[derive(Debug, Clone)]
pub struct Database {
    /// The stores that it holds; at least one. What no manifest places is of the first.
    pub stores: Vec<StoreName>,
    /// Its tables, by schema and name.
    pub tables: Vec<Table>,
}

/// A table. Partitions and tables that inherit count as part of the one above them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: TableName,
    /// Its columns, in order.
    pub columns: Vec<Column>,
    /// The column lists by which a row can be told from all others, the primary key first: each has
    /// a unique index that is whole and immediate, and no column that may be null.
    pub keys: Vec<Vec<String>>,
    /// Its foreign keys, by name.
    pub foreign_keys: Vec<ForeignKey>,
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its type without modifiers, that under a domain. Types that hold each other's keys have one
    /// name: `integer` for every width, `text` for `varchar`.
    pub type_name: String,
    /// Whether it is declared `not null`.
    pub not_null: bool,
}

/// A foreign key to a table of the same database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignKey {
    /// Its name.
    pub name: String,
    /// The columns that reference.
    pub columns: Vec<String>,
    /// The table that is referenced.
    pub parent: TableName,
    /// The columns that are referenced, in the order of `columns`.
    pub parent_columns: Vec<String>,
}

impl Table {
    pub(crate) fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// The type of the only column of a key.
    pub(crate) fn type_of(&self, key: &[String]) -> Option<&str> {
        let [column] = key else { return None };
        Some(self.column(column)?.type_name.as_str())
    }
}

/// Reads every table that could be an organization's: none of the system's, of an extension's, of
/// Monarch's own, and none that is temporary.
///
/// # Errors
/// When the catalog could not be read.
pub async fn read<C: GenericClient + Sync>(client: &C) -> Result<Vec<Table>> {
    let mut tables = Tables::default();
    tables.names(client).await?;
    tables.columns(client).await?;
    tables.keys(client).await?;
    tables.foreign_keys(client).await?;
    Ok(tables.read)
}

/// What the database calls itself.
///
/// # Errors
/// When it could not be asked.
pub async fn database_name<C: GenericClient + Sync>(client: &C) -> Result<String> {
    let doing = "read the database's name";
    let row = client
        .query_one("select current_database()::text", &[])
        .await
        .doing(doing)?;
    row.try_get(0).doing(doing)
}

#[derive(Default)]
struct Tables {
    read: Vec<Table>,
    by_oid: HashMap<u32, usize>,
    oids: Vec<u32>,
}

impl Tables {
    async fn names<C: GenericClient + Sync>(&mut self, client: &C) -> Result<()> {
        const TABLES: &str = "
            select c.oid, n.nspname, c.relname
            from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
            where c.relkind in ('r', 'p') and c.relpersistence <> 't'
              and n.nspname <> 'information_schema' and n.nspname !~ '^(pg_|monarch$|monarch_)'
              and not exists (select from pg_catalog.pg_inherits i where i.inhrelid = c.oid)
              and not exists (select from pg_catalog.pg_depend d
                              where d.classid = 'pg_catalog.pg_class'::regclass
                                and d.objid = c.oid and d.deptype = 'e')
            order by n.nspname <> 'public', n.nspname, c.relname";
        let doing = "read the catalog: tables";
        for row in client.query(TABLES, &[]).await.doing(doing)? {
            // A name that holds a control character can stand in no manifest.
            let (schema, relation) = (text(&row, "nspname")?, text(&row, "relname")?);
            let Ok(name) = TableName::new(&schema, &relation) else {
                continue;
            };
            let oid = row.try_get("oid").doing(doing)?;
            self.by_oid.insert(oid, self.read.len());
            self.oids.push(oid);
            self.read.push(Table {
                name,
                columns: Vec::new(),
                keys: Vec::new(),
                foreign_keys: Vec::new(),
            });
        }
        Ok(())
    }

    async fn columns<C: GenericClient + Sync>(&mut self, client: &C) -> Result<()> {
        const COLUMNS: &str = "
            select a.attrelid, a.attname, a.attnotnull,
                   case
                     when base.oid in ('pg_catalog.int2'::regtype, 'pg_catalog.int4'::regtype,
                                       'pg_catalog.int8'::regtype) then 'integer'
                     when base.oid in ('pg_catalog.varchar'::regtype, 'pg_catalog.name'::regtype)
                       then 'text'
                     else pg_catalog.format_type(base.oid, null)
                   end as type_name
            from pg_catalog.pg_attribute a
            cross join lateral (
              with recursive under(oid, below) as (
                select t.oid, t.typbasetype from pg_catalog.pg_type t where t.oid = a.atttypid
                union all
                select t.oid, t.typbasetype
                from under join pg_catalog.pg_type t on t.oid = under.below)
              select under.oid from under where under.below = 0) as base
            where a.attrelid = any($1::oid[]) and a.attnum > 0 and not a.attisdropped
            order by a.attrelid, a.attnum";
        let doing = "read the catalog: columns";
        for row in client.query(COLUMNS, &[&self.oids]).await.doing(doing)? {
            let column = Column {
                name: text(&row, "attname")?,
                type_name: text(&row, "type_name")?,
                not_null: row.try_get("attnotnull").doing(doing)?,
            };
            if let Some(table) = self.of(&row, "attrelid")? {
                table.columns.push(column);
            }
        }
        Ok(())
    }

    async fn keys<C: GenericClient + Sync>(&mut self, client: &C) -> Result<()> {
        const KEYS: &str = "
            select i.indrelid, columns.names
            from pg_catalog.pg_index i
            join pg_catalog.pg_class c on c.oid = i.indexrelid
            cross join lateral (
              select array_agg(a.attname::text order by part.place) as names,
                     bool_and(a.attnotnull) as not_null
              from unnest(i.indkey::int2[]) with ordinality as part(number, place)
              join pg_catalog.pg_attribute a
                on a.attrelid = i.indrelid and a.attnum = part.number
              where part.place <= i.indnkeyatts) as columns
            where i.indrelid = any($1::oid[]) and i.indisunique and i.indimmediate and i.indisvalid
              and i.indpred is null and i.indexprs is null and columns.not_null
            order by i.indrelid, not i.indisprimary, i.indnkeyatts, c.relname";
        for row in client
            .query(KEYS, &[&self.oids])
            .await
            .doing("read the catalog: keys")?
        {
            let names = row.try_get("names").doing("read the catalog: keys")?;
            if let Some(table) = self.of(&row, "indrelid")? {
                table.keys.push(names);
            }
        }
        Ok(())
    }

    async fn foreign_keys<C: GenericClient + Sync>(&mut self, client: &C) -> Result<()> {
        // One that a partition has from the table above it is that table's.
        const FOREIGN_KEYS: &str = "
            select f.conrelid, f.conname, n.nspname, c.relname,
                   (select array_agg(a.attname::text order by part.place)
                    from unnest(f.conkey) with ordinality as part(number, place)
                    join pg_catalog.pg_attribute a
                      on a.attrelid = f.conrelid and a.attnum = part.number) as columns,
                   (select array_agg(a.attname::text order by part.place)
                    from unnest(f.confkey) with ordinality as part(number, place)
                    join pg_catalog.pg_attribute a
                      on a.attrelid = f.confrelid and a.attnum = part.number) as parent_columns
            from pg_catalog.pg_constraint f
            join pg_catalog.pg_class c on c.oid = f.confrelid
            join pg_catalog.pg_namespace n on n.oid = c.relnamespace
            where f.contype = 'f' and f.conparentid = 0 and f.conrelid = any($1::oid[])
            order by f.conrelid, f.conname";
        let doing = "read the catalog: foreign keys";
        for row in client
            .query(FOREIGN_KEYS, &[&self.oids])
            .await
            .doing(doing)?
        {
            let parent = TableName::new(&text(&row, "nspname")?, &text(&row, "relname")?);
            let (Ok(parent), Some(table)) = (parent, self.of(&row, "conrelid")?) else {
                continue;
            };
            table.foreign_keys.push(ForeignKey {
                name: text(&row, "conname")?,
                columns: row.try_get("columns").doing(doing)?,
                parent,
                parent_columns: row.try_get("parent_columns").doing(doing)?,
            });
        }
        Ok(())
    }

    fn of(&mut self, row: &Row, column: &str) -> Result<Option<&mut Table>> {
        let oid: u32 = row.try_get(column).doing("read the catalog")?;
        let at = self.by_oid.get(&oid);
        Ok(at.and_then(|&at| self.read.get_mut(at)))
    }
}

fn text(row: &Row, column: &str) -> Result<String> {
    row.try_get(column).doing("read the catalog")
}
