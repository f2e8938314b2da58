use super::*;

fn pod() -> Pod {
    serde_json::from_value(json!({
        "metadata": { "name": "p", "namespace": "n", "uid": "1" },
        "spec": {
            "initContainers": [{ "name": "prepare", "image": "tool" }],
            "containers": [{ "name": "main", "image": "coder:v2" }, { "name": "side", "image": "proxy" }],
        },
    }))
    .unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn look(pod: &Pod, second: i64, image: &str, behaviour: Behaviour) -> PodStatus {
    let of = |container: &Container| {
        let meant = container.image.as_deref() == Some(image);
        StateSource::Told(if meant { behaviour } else { Behaviour::Ready })
    };
    desired(pod, Ipv4Addr::new(10, 128, 0, 1), "10.127.0.1", at(second), of).unwrap()
}

fn ready(status: &PodStatus) -> (&str, i64) {
    let condition = status.conditions.iter().flatten().find(|condition| condition.type_ == "Ready").unwrap();
    (&condition.status, condition.last_transition_time.as_ref().unwrap().0.as_second())
}

#[test]
fn each_behaviour_gives_a_phase_and_a_readiness() {
    for (image, behaviour, phase, is_ready) in [
        ("coder:v2", Behaviour::Ready, "Running", "True"),
        ("coder:v2", Behaviour::Unready, "Running", "False"),
        ("coder:v2", Behaviour::ImagePullBackOff, "Pending", "False"),
        ("coder:v2", Behaviour::CrashLoop, "Running", "False"),
        ("tool", Behaviour::ImagePullBackOff, "Pending", "False"),
        ("tool", Behaviour::CrashLoop, "Pending", "False"),
    ] {
        let status = look(&pod(), 1, image, behaviour);
        assert_eq!(status.phase.as_deref(), Some(phase), "{image} {behaviour:?}");
        assert_eq!(ready(&status).0, is_ready, "{image} {behaviour:?}");
    }
}

#[test]
fn a_second_look_changes_nothing() {
    for behaviour in [Behaviour::Ready, Behaviour::Unready, Behaviour::ImagePullBackOff, Behaviour::CrashLoop]
    {
        let mut pod = pod();
        let first = look(&pod, 1, "coder:v2", behaviour);
        pod.status = Some(first.clone());
        assert_eq!(look(&pod, 2, "coder:v2", behaviour), first);
    }
}

#[test]
fn a_change_moves_the_transition_time_and_names_what_goes_away() {
    let mut pod = pod();
    pod.status = Some(look(&pod, 1, "coder:v2", Behaviour::Unready));
    let status = look(&pod, 2, "coder:v2", Behaviour::Ready);
    assert_eq!(ready(&status), ("True", 2));
    let patch = patch(&pod, &status);
    let condition = &patch["status"]["conditions"][3];
    assert_eq!(condition["type"], "Ready");
    assert!(condition.get("reason").is_some_and(Value::is_null), "{condition}");
}

#[test]
fn conditions_of_others_are_kept_out_of_the_patch() {
    let mut pod = pod();
    let foreign =
        PodCondition { type_: "DisruptionTarget".into(), status: "True".into(), ..Default::default() };
    pod.status = Some(PodStatus { conditions: Some(vec![foreign]), ..Default::default() });
    let status = look(&pod, 1, "coder:v2", Behaviour::Ready);
    assert_eq!(status.conditions.as_ref().unwrap().len(), 5);
    assert_eq!(patch(&pod, &status)["status"]["conditions"].as_array().unwrap().len(), 4);
}

#[test]
fn a_pod_that_has_ended_is_left_alone() {
    let mut pod = pod();
    pod.status = Some(PodStatus { phase: Some("Succeeded".into()), ..Default::default() });
    assert!(desired(&pod, Ipv4Addr::LOCALHOST, "", at(1), |_| StateSource::Told(Behaviour::Ready)).is_none());
}

#[test]
fn a_process_is_reported_as_it_fares() {
    let look = |pod: &Pod, second: i64, seen: &Observed| {
        desired(pod, Ipv4Addr::LOCALHOST, "", at(second), |container| match container.name.as_str() {
            "main" => StateSource::Observed(seen.clone()),
            _ => StateSource::Told(Behaviour::Ready),
        })
        .unwrap()
    };
    let mut pod = pod();
    let starting = look(&pod, 1, &Observed::new());
    assert_eq!((starting.phase.as_deref(), ready(&starting).0), (Some("Pending"), "False"));

    let last = Some(Ended { exit_code: 137, began: at(2), finished: at(3) });
    let phase = Phase::Running { since: at(4), started: true, ready: true };
    let seen = Observed { phase, restarts: 1, last };
    let running = look(&pod, 5, &seen);
    assert_eq!((running.phase.as_deref(), ready(&running)), (Some("Running"), ("True", 5)));
    let main = &running.container_statuses.as_ref().unwrap()[0];
    assert_eq!(main.restart_count, 1);
    let last = main.last_state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!((last.exit_code, last.reason.as_deref()), (137, Some("Error")));
    pod.status = Some(running.clone());
    assert_eq!(look(&pod, 6, &seen), running);
}
