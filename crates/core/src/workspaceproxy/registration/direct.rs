//! A person supplies the token. Nothing is registered, and what was registered before is to go.

use super::{
    decide::Pass,
    finding::{self, Finding},
    retire,
    step::{Decision, Next},
};
use crate::workload::Run;

pub(super) fn decide(pass: &Pass<'_>) -> Decision {
    let given = match &pass.seen.given {
        Ok(given) => given,
        Err(trouble) => {
            let unsure = Finding { in_place: Some(false), ..Finding::unsure(trouble) };
            return Decision::rest(pass.last_run(), unsure);
        }
    };
    let url = pass.seen.url.clone();
    let run = url.map(|url| Run { secret: given.place.clone(), checksum: given.token.checksum.clone(), url });
    let mut decision = Decision::rest(run.clone(), finding::given());
    let mut record = pass.record.clone();
    // The registration that the token is for goes on under the care of whoever supplies it.
    let is_its = |id: &String| given.token.id.as_ref() == Some(id);
    record.current.take_if(|current| is_its(&current.id));
    record.give_up(pass.now);
    record.stale.retain(|stale| !stale.id.as_ref().is_some_and(is_its));
    record.secret = Some(given.place.clone());
    if record != *pass.record {
        decision.next = Next::Record(Box::new(record));
        return decision;
    }
    retire::add(pass, run.as_ref(), &mut decision);
    if decision.next == Next::Rest && pass.seen.is_held && pass.record.is_empty() {
        decision.next = Next::Release;
    }
    decision
}
