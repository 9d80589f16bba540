//! Questions of operators: what they answer, and the SQL that is printed.

use monarch_outbox::{
    Cell, CellName, Control, Drain, Partition, Receivers, Registry, Shard, Table,
};

use crate::fixture::{Category, Db, Log, Scope};

/// Depths, stuck shards, shards, objects and categories, as they are.
#[tokio::test]
async fn the_questions_answer_what_they_ask() {
    let mut db = Db::new().await;
    db.write(&[(1, 1), (1, 2), (1, 2), (2, 1)].map(|(s, o)| (Category::Member, s, o)))
        .await;
    db.write(&[(Category::Unheard, 3, 9)]).await;
    let drain = Log::<Cell>::new().drain();
    let ask = drain.diagnostics();
    let depths = ask.depths(2).ask(&db.client).await.unwrap();
    let depths: Vec<_> = depths
        .iter()
        .map(|depth| (depth.shard, depth.depth))
        .collect();
    assert_eq!(depths, [(1, 3), (2, 1)]);
    assert_eq!(ask.stuck(20).ask(&db.client).await.unwrap(), []);
    assert_eq!(
        ask.category(Category::Member.def())
            .ask(&db.client)
            .await
            .unwrap(),
        [4]
    );
    let object = ask
        .object(Category::Member.def(), 2, 20)
        .ask(&db.client)
        .await
        .unwrap();
    assert_eq!(
        object.iter().map(|waiting| waiting.id).collect::<Vec<_>>(),
        [3, 2]
    );
    let shard = Shard::cell(Scope::Organization, 1);
    let shard = ask.shard(&shard, 2).ask(&db.client).await.unwrap();
    assert_eq!(
        shard.iter().map(|waiting| waiting.id).collect::<Vec<_>>(),
        [3, 2]
    );
    drain
        .partition(&mut db.client, Partition::ALL)
        .await
        .unwrap();
    let stuck = ask.stuck(20).ask(&db.client).await.unwrap();
    assert_eq!(
        (stuck[0].shard, stuck[0].category, stuck[0].depth),
        (3, 8, 1)
    );
    assert!(stuck[0].next_attempt > stuck[0].newest_message);
}

/// What is printed can be pasted: numbers are explained, names quoted, rows limited.
#[tokio::test]
async fn the_sql_explains_its_numbers() {
    let mut db = Db::new().await;
    db.write_control(&[("o'k", Category::Member, 1, 1)]).await;
    let drain = Log::<Control>::new().drain();
    let shard = Shard::control(CellName::new("o'k").unwrap(), Scope::Organization, 1);
    let question = drain.diagnostics().shard(&shard, 50);
    assert_eq!(question.ask(&db.client).await.unwrap().len(), 1);
    let expected = "\
-- The messages of one shard, the newest first
-- shard_scope: 0 = Organization
-- category: 0 = UserUpdate, 2 = OrganizationUpdate, 3 = Member, 5 = AuditLogEvent, 8 = Unheard, \
20 = Retired
select id::int8, \"region_name\"::text as cell, shard_scope::int4, shard_identifier::int8,
    category::int4, object_identifier::int8, payload::text, scheduled_from, scheduled_for,
    date_added
from \"sentry_controloutbox\"
where \"region_name\" = 'o''k' and shard_scope = 0 and shard_identifier = 1
order by id desc
limit 50;";
    assert_eq!(question.sql(), expected);
}

/// The registry of Sentry's categories names what its outboxes hold.
#[tokio::test]
async fn sentrys_own_categories_are_known() {
    let db = Db::new().await;
    let registry = Registry::new(monarch_outbox::sentry::Category::ALL).unwrap();
    assert_eq!(registry.category_named("project-update").unwrap().number, 8);
    assert_eq!(registry.scope_named("audit_log").unwrap().number, 3);
    assert_eq!(registry.category_named("43").unwrap().scope.name, "User");
    let drain = Drain::<Cell>::new(Table::default(), registry, Receivers::new()).unwrap();
    let question = drain.diagnostics().stuck(20);
    assert!(question.sql().contains("8 = ProjectUpdate"));
    assert_eq!(question.ask(&db.client).await.unwrap(), []);
}
