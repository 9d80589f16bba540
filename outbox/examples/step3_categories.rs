//! Step 3 of docs/outbox.md: categories, each in exactly one scope.

#[path = "guide/mod.rs"]
mod guide;

use anyhow::Result;
use guide::Category;
use monarch_outbox::{CategoryDef, Registry};

fn main() -> Result<()> {
    let registry = Registry::new(Category::ALL)?;
    let member = registry.category(3);
    assert_eq!(member, Some(Category::MemberUpdate.def()));
    assert_eq!(
        Category::MemberUpdate.def().scope.shard_column,
        Some("organization_id")
    );
    // Retired, and still known: messages of it may still be queued.
    assert!(Category::AuthProviderDisabled.def().retired);

    // What one `categories!` cannot hold does not compile. What two crates declare is looked at
    // here, at the start, and every fault is named.
    let elsewhere = CategoryDef {
        name: "Other",
        ..Category::MemberUpdate.def()
    };
    let both = Category::ALL
        .iter()
        .map(CategoryDef::from)
        .chain([elsewhere]);
    let Err(fault) = Registry::new(both) else {
        anyhow::bail!("two categories have one number");
    };
    assert_eq!(
        fault.to_string(),
        "the outbox's categories: category Other (3) is also category MemberUpdate (3)"
    );
    Ok(())
}
