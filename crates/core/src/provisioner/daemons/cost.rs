//! Which pods a ReplicaSet is to keep when it is made smaller: those whose daemons are at work.

use super::Pod;
use crate::daemon_listing::Daemon;

/// The annotation by which a ReplicaSet chooses: the pods with the least go first.
pub const ANNOTATION: &str = "controller.kubernetes.io/pod-deletion-cost";
/// The cost of a pod whose daemon is at work. One without the annotation costs nothing.
const BUSY: &str = "1000";

/// The annotation that a pod is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The name of the pod.
    pub pod: String,
    /// Its UID.
    pub uid: String,
    /// The cost. None: no annotation.
    pub cost: Option<&'static str>,
}

/// The annotations that are not as they should be before some pods go.
pub fn marks(pods: &[Pod], daemons: &[Daemon]) -> Vec<Mark> {
    let is_busy =
        |pod: &Pod| daemons.iter().any(|daemon| daemon.busy && Some(&daemon.name) == pod.daemon.as_ref());
    let staying = pods.iter().filter(|pod| !pod.is_deleting);
    let desired = staying.map(|pod| (pod, is_busy(pod).then_some(BUSY)));
    let differ = desired.filter(|(pod, cost)| pod.cost.as_deref() != *cost);
    differ.map(|(pod, cost)| Mark { pod: pod.name.clone(), uid: pod.uid.clone(), cost }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_marked() {
        let pod = |name: &str, cost: Option<&str>| Pod {
            name: name.into(),
            daemon: Some(name.into()),
            cost: cost.map(str::to_owned),
            ..Pod::default()
        };
        let going = Pod { is_deleting: true, ..pod("going", None) };
        let nameless = Pod { daemon: None, ..pod("nameless", None) };
        let pods = [
            pod("busy", None),
            pod("idle", None),
            pod("still-busy", Some(BUSY)),
            pod("was-busy", Some(BUSY)),
            going,
            nameless,
        ];
        let daemon =
            |name: &str| Daemon { name: name.into(), busy: !name.contains("idle"), ..Daemon::default() };
        let daemons = ["busy", "idle", "still-busy", "going"].map(daemon);
        let found = marks(&pods, &daemons);
        let found: Vec<_> = found.iter().map(|mark| (&*mark.pod, mark.cost)).collect();
        assert_eq!(found, [("busy", Some(BUSY)), ("was-busy", None)]);
    }
}
