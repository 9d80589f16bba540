//! What was measured, as a table for people and as JSON for programs.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use comfy_table::{Table, presets};

use crate::measure::{Measured, Side, Times};

/// Writes `results.json` and `results.md` into a folder, and prints the table.
pub(crate) fn write(folder: &Path, measured: &[Measured]) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    let table = table(measured);
    let json = serde_json::to_string_pretty(measured)?;
    for (name, text) in [("results.json", &json), ("results.md", &table)] {
        let file = folder.join(name);
        fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
    }
    #[expect(clippy::print_stdout, reason = "the table is what was asked for")]
    {
        println!("{table}");
    }
    Ok(())
}

fn table(measured: &[Measured]) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header([
        "case", "rows", "ours", "native", "by", "ratio", "goal", "spread", "memory",
    ]);
    for one in measured {
        let native = one.best_native();
        let tool = native.map_or("-", |native| called(native.side));
        let ratio = one.ratio().unwrap_or_default();
        table.add_row([
            one.name.to_owned(),
            one.rows.to_string(),
            per_second(one.rows, &one.ours),
            native.map_or_else(String::new, |native| per_second(one.rows, native)),
            tool.to_owned(),
            format!("{ratio:.2}"),
            format!("{:?}", one.goal),
            spreads(one),
            format!("{:.1} MB", megabytes(one.memory_bytes)),
        ]);
    }
    table.to_string()
}

fn per_second(rows: u64, times: &Times) -> String {
    #[expect(clippy::cast_precision_loss)]
    let rate = rows as f64 / times.median().max(Duration::from_nanos(1)).as_secs_f64();
    format!("{rate:.0}/s")
}

/// How far the runs of either side lie apart, ours first.
fn spreads(one: &Measured) -> String {
    let native = one.best_native().map_or(0.0, Times::spread);
    format!(
        "{:.0} %, {:.0} %",
        one.ours.spread() * 100.0,
        native * 100.0
    )
}

fn megabytes(bytes: u64) -> f64 {
    #[expect(clippy::cast_precision_loss)]
    let megabytes = bytes as f64 / 1e6;
    megabytes
}

fn called(side: Side) -> &'static str {
    match side {
        Side::Ours => "monarch",
        Side::CopyText => "psql, text",
        Side::CopyBinary => "psql, binary",
        Side::Subscription => "subscription",
        Side::WithoutObjects => "monarch, no objects",
    }
}
