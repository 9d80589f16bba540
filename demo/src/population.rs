//! The rows that an organization has before anybody writes.

use anyhow::{Context, Result, bail};

use crate::{Cell, Organization};

const POPULATION: &str = include_str!("population.sql");

/// The keys of the organization that lives on the sink begin here.
const FAR_AWAY: i64 = 900_000_000;

/// Gives an organization its first rows: `rows` issues and about eight times as many others.
///
/// # Errors
///
/// When a database refuses.
pub async fn populate(cell: &Cell, organization: &Organization, rows: u32) -> Result<()> {
    let base = match *organization {
        Organization::AT_HOME => FAR_AWAY,
        // The first rows of the source's organizations lie side by side; later ones are numbered by
        // the tables' sequences, across all of them.
        Organization { id, .. } => (id - 1) * 2 * i64::from(rows),
    };
    let text = organization
        .sql(POPULATION)
        .replace("{base}", &base.to_string())
        .replace("{rows}", &rows.to_string());
    for section in text.split("-- store ").skip(1) {
        let Some((store, sql)) = section.split_once('\n') else {
            bail!("a section of the population without a store");
        };
        let client = cell.place_of(store)?.connect().await?;
        client.batch_execute(sql).await.with_context(|| {
            format!(
                "populate {store} of {} for {}",
                cell.name, organization.slug
            )
        })?;
    }
    Ok(())
}

/// Sets the sequences of a cell past the keys in its tables, as they would be where the
/// application had numbered its rows itself.
///
/// # Errors
///
/// When a database refuses.
pub async fn number_on(cell: &Cell) -> Result<()> {
    const TABLES: &str = "
        select format('select setval(%L, max(%I)) from %s',
                      pg_get_serial_sequence(attrelid::regclass::text, attname), attname,
                      attrelid::regclass)
        from pg_attribute join pg_class on pg_class.oid = attrelid
        where attidentity <> '' and relkind in ('r', 'p') and not attisdropped";
    for place in &cell.places {
        let client = place.connect().await?;
        for row in client
            .query(TABLES, &[])
            .await
            .context("list identity columns")?
        {
            client
                .execute(row.get::<_, &str>(0), &[])
                .await
                .context("set a sequence")?;
        }
    }
    Ok(())
}
