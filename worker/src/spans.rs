//! Says on every line of an activity's log which move, store and attempt it is about.

use futures::FutureExt as _;
use monarch_model::{MoveId, StoreName};
use monarch_workflows::contract::{
    AdoptInput, Because, BeginEvictInput, DrainInput, DrainRef, MoveRef, ReadinessInput,
    RegisterInput, UnitRef,
};
use temporalio_sdk::activities::ActivityError;
use temporalio_sdk::interceptors::{
    ActivityInboundInterceptor, ExecuteActivityInput, ExecuteActivityOutput, Next,
};
use tracing::{Instrument as _, debug, field, info_span, warn};

/// Wraps every activity in a span.
pub(crate) struct Spans;

impl ActivityInboundInterceptor for Spans {
    fn execute_activity<'a>(
        &'a self,
        input: ExecuteActivityInput,
        next: Next<'a, ExecuteActivityInput, ExecuteActivityOutput<'a>>,
    ) -> ExecuteActivityOutput<'a> {
        let (move_id, store) = subject(&input);
        let info = input.activity_info();
        let span = info_span!(
            "activity",
            activity = info.activity_type,
            move_id = move_id.map(field::display),
            store = store.map(field::display),
            attempt = info.attempt,
        );
        let run = async move {
            debug!("begins");
            let ended = next.run(input).await;
            match &ended {
                Err(ActivityError::Application(failure)) => {
                    warn!(code = failure.type_name(), error = %failure, "failed");
                }
                Err(_) => debug!("stopped"),
                Ok(_) => debug!("done"),
            }
            ended
        };
        run.instrument(span).boxed()
    }
}

/// The move and the store that an activity is about, as its input has them.
fn subject(input: &ExecuteActivityInput) -> (Option<MoveId>, Option<StoreName>) {
    if let Some(unit) = input.args_ref::<UnitRef>() {
        return (Some(unit.move_id), Some(unit.store.clone()));
    }
    let move_id = None
        .or_else(|| input.args_ref().map(|i: &MoveRef| i.move_id))
        .or_else(|| input.args_ref().map(|i: &Because| i.move_id))
        .or_else(|| input.args_ref().map(|i: &AdoptInput| i.move_id))
        .or_else(|| input.args_ref().map(|i: &RegisterInput| i.move_id))
        .or_else(|| input.args_ref().map(|i: &ReadinessInput| i.move_id))
        .or_else(|| input.args_ref().map(|i: &DrainRef| i.move_id))
        .or_else(|| input.args_ref().map(|i: &DrainInput| i.drain.move_id))
        .or_else(|| input.args_ref().map(|i: &BeginEvictInput| i.move_id));
    (move_id, None)
}
