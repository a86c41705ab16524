//! The rules of rounds, with a clock that the tests set.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::launch::agents::message::{Node, View};
use crate::launch::agents::world::{Id, Refusal, Terms, World};

struct Clock(Instant);

impl Clock {
    fn at(&self, seconds: f64) -> Instant {
        self.0 + Duration::from_secs_f64(seconds)
    }
}

fn world(min: usize, max: usize, max_restarts: u32) -> (World, Clock) {
    world_of(false, min, max, max_restarts)
}

fn world_of(numbered: bool, min: usize, max: usize, max_restarts: u32) -> (World, Clock) {
    let clock = Clock(Instant::now());
    (World::new(terms_of(numbered, min, max, max_restarts), clock.0), clock)
}

fn terms_of(numbered: bool, min: usize, max: usize, max_restarts: u32) -> Terms {
    Terms {
        min,
        max,
        max_restarts,
        join_timeout: Duration::from_secs(600),
        last_call: Duration::from_secs(30),
        silence: Duration::from_secs(10_000),
        same: BTreeMap::new(),
        master_addr: "first".into(),
        by_arrival: false,
        free_port: || 4000,
        nonce: || Ok("nonce".into()),
        numbered,
    }
}

fn node(local_ranks: usize) -> Node {
    Node { id: String::new(), host: "h".into(), pid: 7, local_ranks, place: None, same: BTreeMap::new() }
}

/// A node that comes and is ready.
fn comes(world: &mut World, local_ranks: usize, now: Instant) -> Id {
    let id = world.hello(&node(local_ranks), true, now).unwrap();
    world.ready(id, now);
    world.tick(now);
    id
}

/// Round, restart, place and the ranks of each node, of one who works.
fn works(world: &mut World, id: Id) -> (u64, u32, usize, Vec<usize>) {
    match world.view(id) {
        View::Works { round, restart, node_rank, local_ranks, .. } => {
            (round, restart, node_rank, local_ranks)
        }
        other => panic!("node {id}: {other:?}"),
    }
}

fn waits(world: &mut World, id: Id) -> bool {
    matches!(world.view(id), View::Waiting { .. })
}

fn restarts(world: &mut World, id: Id) -> String {
    match world.view(id) {
        View::Restart { reason } => reason,
        other => panic!("node {id}: {other:?}"),
    }
}

fn aborted(world: &mut World, id: Id) -> String {
    match world.view(id) {
        View::Aborted { reason } => reason,
        other => panic!("node {id}: {other:?}"),
    }
}

#[test]
fn a_round_begins_when_all_are_here() {
    let (mut world, clock) = world(2, 2, 0);
    let a = comes(&mut world, 4, clock.at(0.0));
    world.tick(clock.at(500.0));
    assert!(waits(&mut world, a));
    let b = comes(&mut world, 2, clock.at(501.0));
    assert_eq!(works(&mut world, a), (1, 0, 0, vec![4, 2]));
    assert_eq!(works(&mut world, b), (1, 0, 1, vec![4, 2]));
    let View::Works { master_addr, master_port, .. } = world.view(b) else { panic!() };
    assert_eq!((&*master_addr, master_port), ("first", 4000));
}

#[test]
fn with_enough_the_last_call_runs_out() {
    let (mut world, clock) = world(2, 4, 0);
    let a = comes(&mut world, 1, clock.at(0.0));
    let b = comes(&mut world, 1, clock.at(100.0));
    world.tick(clock.at(129.0));
    assert!(waits(&mut world, a));
    let c = comes(&mut world, 1, clock.at(129.5));
    world.tick(clock.at(130.0));
    for (id, place) in [(a, 0), (b, 1), (c, 2)] {
        assert_eq!(works(&mut world, id), (1, 0, place, vec![1, 1, 1]));
    }
}

/// Invariant 5.
#[test]
fn a_failure_restarts_all_and_counts_once() {
    let (mut world, clock) = world(2, 2, 1);
    let (a, b) = (comes(&mut world, 1, clock.at(0.0)), comes(&mut world, 1, clock.at(0.0)));
    world.failed(b, 1, ("rank 1: signal 9", false), clock.at(1.0));
    // What follows from it, on another node and on the same.
    world.failed(a, 1, ("rank 0: rank 1 failed", false), clock.at(1.1));
    world.failed(b, 1, ("rank 1: again", false), clock.at(1.2));
    for id in [a, b] {
        assert_eq!(restarts(&mut world, id), "h (process 7): rank 1: signal 9");
        world.ready(id, clock.at(2.0));
    }
    // All who worked are here again: nobody else is waited for.
    world.tick(clock.at(2.0));
    assert_eq!(works(&mut world, a), (2, 1, 0, vec![1, 1]));
    // A late word on the first round changes nothing.
    world.failed(a, 1, ("late", false), clock.at(2.1));
    assert_eq!(works(&mut world, b), (2, 1, 1, vec![1, 1]));
    world.failed(a, 2, ("rank 0: exit code 3", false), clock.at(3.0));
    for id in [a, b] {
        assert_eq!(aborted(&mut world, id), "h (process 7): rank 0: exit code 3; all 1 restarts are used");
    }
    assert!(world.all_know_end());
    let late = world.hello(&node(1), false, clock.at(4.0)).unwrap_err();
    assert!(
        matches!(late, Refusal::Because(why) if why.contains("has ended") && why.contains("exit code 3"))
    );
}

/// Invariant 6.
#[test]
fn who_comes_later_is_taken_without_a_restart_being_used() {
    let (mut world, clock) = world(1, 2, 0);
    let a = comes(&mut world, 1, clock.at(0.0));
    world.tick(clock.at(30.0));
    assert_eq!(works(&mut world, a), (1, 0, 0, vec![1]));
    let b = comes(&mut world, 3, clock.at(40.0));
    assert_eq!(restarts(&mut world, a), "h (process 7) joins");
    assert!(waits(&mut world, b));
    world.ready(a, clock.at(41.0));
    world.tick(clock.at(41.0));
    assert_eq!(works(&mut world, a), (2, 0, 0, vec![1, 3]));
    assert_eq!(works(&mut world, b), (2, 0, 1, vec![1, 3]));
    // A third has no place, and disturbs nobody.
    let c = comes(&mut world, 1, clock.at(42.0));
    assert!(waits(&mut world, c));
    assert_eq!(works(&mut world, a).0, 2);
    // Until one is free.
    world.lost(b, "was lost: reset", clock.at(43.0));
    assert_eq!(restarts(&mut world, a), "h (process 7) was lost: reset");
    world.ready(a, clock.at(44.0));
    world.tick(clock.at(44.0));
    assert_eq!(works(&mut world, c), (3, 0, 1, vec![1, 1]));
}

#[test]
fn without_a_lost_node_the_others_go_on_if_they_are_enough() {
    let (mut world, clock) = world(2, 3, 0);
    let ids = [0, 1, 2].map(|_| comes(&mut world, 1, clock.at(0.0)));
    world.lost(ids[1], "was lost: reset", clock.at(10.0));
    for id in [ids[0], ids[2]] {
        world.ready(id, clock.at(11.0));
    }
    world.tick(clock.at(12.0));
    assert!(waits(&mut world, ids[0]), "the lost one may come back");
    world.tick(clock.at(42.0));
    assert_eq!(works(&mut world, ids[2]), (2, 0, 1, vec![1, 1]));
    world.lost(ids[2], "left", clock.at(50.0));
    world.ready(ids[0], clock.at(51.0));
    world.tick(clock.at(649.0));
    assert!(waits(&mut world, ids[0]));
    world.tick(clock.at(650.0));
    assert_eq!(
        aborted(&mut world, ids[0]),
        "after 600 s 1 of at least 2 nodes are ready: h (process 7); h (process 7) was lost: reset; h (process 7) left"
    );
}

#[test]
fn who_does_not_end_its_ranks_is_named() {
    let (mut world, clock) = world(2, 2, 3);
    let (a, b) = (comes(&mut world, 1, clock.at(0.0)), comes(&mut world, 1, clock.at(0.0)));
    world.failed(a, 1, ("rank 0: exit code 1", false), clock.at(1.0));
    world.ready(a, clock.at(2.0));
    world.tick(clock.at(601.0));
    assert!(aborted(&mut world, a).ends_with("h (process 7) is not ready"), "{}", aborted(&mut world, b));
}

#[test]
fn who_gives_no_sign_of_life_is_lost() {
    let (mut world, clock) = world(1, 2, 0);
    let terms_silence = 10_000.0;
    let (a, b) = (comes(&mut world, 1, clock.at(0.0)), comes(&mut world, 1, clock.at(0.0)));
    world.seen(a, clock.at(terms_silence));
    world.tick(clock.at(terms_silence + 1.0));
    assert_eq!(restarts(&mut world, a), "h (process 7) gave no sign of life for 10000 s");
    assert!(aborted(&mut world, b).contains("this node was given up"));
}

#[test]
fn no_round_is_without_the_keeper() {
    let (mut world, clock) = world(1, 2, 0);
    let [b, c] = [0, 1].map(|_| world.hello(&node(1), false, clock.at(0.0)).unwrap());
    for id in [b, c] {
        world.ready(id, clock.at(0.0));
    }
    world.tick(clock.at(100.0));
    assert!(waits(&mut world, b));
    let a = comes(&mut world, 1, clock.at(101.0));
    assert_eq!((works(&mut world, a).2, works(&mut world, b).2), (0, 1));
    assert!(waits(&mut world, c), "two have a place");
    world.lost(a, "was lost: reset", clock.at(102.0));
    assert!(aborted(&mut world, b).ends_with("was lost: reset; it keeps the list of nodes"));
}

#[test]
fn the_run_is_done_when_all_are() {
    let (mut world, clock) = world(1, 3, 5);
    let (a, b, c) = (
        comes(&mut world, 1, clock.at(0.0)),
        comes(&mut world, 1, clock.at(0.0)),
        comes(&mut world, 1, clock.at(0.0)),
    );
    world.done(a, 1);
    // Whoever comes now would only disturb; whoever is done may go.
    let d = comes(&mut world, 1, clock.at(1.0));
    assert!(waits(&mut world, d));
    world.done(c, 1);
    world.lost(c, "left", clock.at(2.0));
    assert_eq!(works(&mut world, b).0, 1);
    // A failure calls back who was done.
    world.failed(b, 1, ("rank 1: signal 9", false), clock.at(3.0));
    assert!(restarts(&mut world, a).contains("signal 9"));
    for id in [a, b] {
        world.ready(id, clock.at(4.0));
    }
    world.tick(clock.at(4.0));
    assert_eq!(works(&mut world, d), (2, 1, 2, vec![1, 1, 1]));
    for id in [a, b, d] {
        world.done(id, 2);
    }
    assert_eq!([a, b, d].map(|id| world.view(id)), [View::AllDone, View::AllDone, View::AllDone]);
    assert!(world.all_know_end());
}

#[test]
fn what_differs_is_named_all_at_once() {
    let (mut world, clock) = world(1, 1, 0);
    let mut stranger = node(1);
    stranger.same = [("train.yaml", "1"), ("data", "x")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    let Err(Refusal::Differs(differences)) = world.hello(&stranger, true, clock.at(0.0)) else { panic!() };
    let said: Vec<_> = differences.iter().map(|d| (&*d.what, &*d.joining, &*d.store)).collect();
    assert_eq!(said, [("data", "x", "not known"), ("train.yaml", "1", "not known")]);
    for ranks in [0, usize::MAX] {
        assert!(matches!(world.hello(&node(ranks), true, clock.at(0.0)), Err(Refusal::Because(_))));
    }
}

proptest! {
    /// Invariant 4: whatever nodes do in whatever order, those who work agree on one world of a size that is allowed.
    #[test]
    fn all_who_work_see_one_world(
        min in 1usize..4, more in 0usize..3, max_restarts in 0u32..4,
        steps in prop::collection::vec((0u8..8, 0u64..8, 0.0f64..40.0), 1..80),
    ) {
        let max = min + more;
        let (mut world, clock) = world(min, max, max_restarts);
        let (mut now, mut last_round, mut ids) = (0.0, 0, Vec::new());
        for (what, which, pause) in steps {
            now += pause;
            let id = ids.get(which as usize % ids.len().max(1)).copied().unwrap_or(99);
            match what {
                0 | 1 => if let Ok(id) = world.hello(&node(which as usize + 1), true, clock.at(now)) { ids.push(id) },
                2 | 3 => world.ready(id, clock.at(now)),
                4 => world.failed(id, last_round, ("x", false), clock.at(now)),
                5 => world.done(id, last_round),
                6 => world.lost(id, "left", clock.at(now)),
                _ => {}
            }
            world.tick(clock.at(now));
            let views: Vec<_> = ids.iter().map(|&id| world.view(id)).collect();
            let mut places = Vec::new();
            let mut worlds = Vec::new();
            for view in views {
                if let View::Works { round, restart, node_rank, local_ranks, .. } = view {
                    prop_assert!(round >= last_round && restart <= max_restarts);
                    prop_assert!((min..=max).contains(&local_ranks.len()));
                    places.push(node_rank);
                    worlds.push((round, restart, local_ranks));
                }
            }
            worlds.dedup();
            prop_assert!(worlds.len() <= 1);
            if let Some((round, _, local_ranks)) = worlds.first() {
                last_round = *round;
                let n = places.len();
                places.sort_unstable();
                places.dedup();
                prop_assert!(places.len() == n && places.iter().all(|&place| place < local_ranks.len()));
            }
        }
        // Once all are ready and nothing else happens, all that have a place work, or the run has ended.
        for &id in &ids {
            world.ready(id, clock.at(now));
        }
        for later in [0.0, 31.0, 700.0] {
            world.tick(clock.at(now + later));
        }
        let views: Vec<_> = ids.iter().map(|&id| world.view(id)).collect();
        let at_work = views.iter().filter(|view| matches!(view, View::Works { .. })).count();
        let waiting = views.iter().filter(|view| matches!(view, View::Waiting { .. })).count();
        let ended = views.iter().all(|view| matches!(view, View::Aborted { .. } | View::AllDone));
        prop_assert!(ended || (at_work + waiting).min(max) == at_work, "{:?}", views);
    }
}

/// A node that has a number.
fn numbered(place: usize) -> Node {
    Node { place: Some(place), ..node(place + 1) }
}

fn world_of_numbers(n: usize, max_restarts: u32) -> (World, Clock) {
    world_of(true, n, n, max_restarts)
}

#[test]
fn nodes_with_numbers_have_the_places_of_their_numbers() {
    let (mut world, clock) = world_of_numbers(3, 0);
    let now = clock.at(0.0);
    let ids: Vec<Id> = [2, 0, 1]
        .map(|place| {
            let id = world.hello(&numbered(place), place == 0, now).unwrap();
            world.ready(id, now);
            id
        })
        .into();
    world.tick(now);
    for (id, place) in ids.iter().zip([2, 0, 1]) {
        assert_eq!(works(&mut world, *id), (1, 0, place, vec![1, 2, 3]));
    }
}

#[test]
fn a_number_that_is_taken_or_cannot_be_is_refused() {
    let (mut world, clock) = world_of_numbers(2, 0);
    let now = clock.at(0.0);
    let mut refused = |node: Node| match world.hello(&node, false, now) {
        Err(Refusal::Because(reason)) => reason,
        other => panic!("{other:?}"),
    };
    assert!(refused(numbered(2)).contains("machine 2 of 2"));
    assert!(refused(node(1)).contains("it has no number"));
    world.hello(&numbered(1), false, now).unwrap();
    let mut refused = |node: Node| match world.hello(&node, false, now) {
        Err(Refusal::Because(reason)) => reason,
        other => panic!("{other:?}"),
    };
    assert!(refused(numbered(1)).contains("is machine 1 already"));
    let (mut open, _) = self::world(1, 2, 0);
    assert!(matches!(open.hello(&numbered(1), false, now), Err(Refusal::Because(_))));
}

/// No other node can stand in for one with a number: its loss is a failure.
#[test]
fn the_loss_of_a_node_with_a_number_uses_a_restart_or_ends_the_run() {
    for (max_restarts, ends) in [(0, true), (1, false)] {
        let (mut world, clock) = world_of_numbers(2, max_restarts);
        let now = clock.at(0.0);
        let ids = [0, 1].map(|place| {
            let id = world.hello(&numbered(place), place == 0, now).unwrap();
            world.ready(id, now);
            id
        });
        world.tick(now);
        world.lost(ids[1], "was lost", now);
        if ends {
            assert!(aborted(&mut world, ids[0]).contains("was lost"));
            continue;
        }
        assert!(restarts(&mut world, ids[0]).contains("was lost"));
        world.ready(ids[0], now);
        world.tick(clock.at(100.0));
        assert!(waits(&mut world, ids[0]), "none stands in for it");
        let back = world.hello(&numbered(1), false, clock.at(101.0)).unwrap();
        world.ready(back, clock.at(101.0));
        world.tick(clock.at(101.0));
        assert_eq!(works(&mut world, back), (2, 1, 1, vec![1, 2]));
    }
}

/// A node whose connection an outage has broken keeps its place; what becomes of the old connection does not matter.
#[test]
fn a_node_that_comes_again_in_time_is_the_same() {
    let (mut world, clock) = world(2, 2, 1);
    let named = |name: &str| Node { id: name.into(), ..node(1) };
    let [first, second] = ["a", "b"].map(|name| {
        let id = world.hello(&named(name), true, clock.at(0.0)).unwrap();
        world.ready(id, clock.at(0.0));
        id
    });
    world.tick(clock.at(0.0));
    let before = works(&mut world, second);
    let connection = world.connection(second);
    assert_eq!(world.comes_again(&named("b"), clock.at(9000.0)), Some(second));
    assert_ne!(world.connection(second), connection);
    // It was heard then.
    world.seen(first, clock.at(18_000.0));
    world.tick(clock.at(18_000.0));
    assert_eq!(works(&mut world, second), before);
    assert_eq!((world.round_of(second), world.round_of(99)), (1, 0));
    // Who is no longer known comes as a new node.
    world.lost(second, "is gone", clock.at(18_001.0));
    assert_eq!(world.comes_again(&named("b"), clock.at(18_002.0)), None);
    assert_eq!(world.comes_again(&named(""), clock.at(18_002.0)), None);
}

/// Where the endpoint means the store's machine on that machine alone, ranks meet where other nodes have reached it.
#[test]
fn ranks_meet_where_other_nodes_have_come() {
    let met = |by_arrival: bool, reached: [&str; 2]| {
        let clock = Clock(Instant::now());
        let mut world = World::new(Terms { by_arrival, ..terms_of(false, 2, 2, 0) }, clock.0);
        let ids = [comes(&mut world, 1, clock.at(0.0)), world.hello(&node(1), false, clock.at(0.0)).unwrap()];
        ids.iter().zip(reached).for_each(|(id, ip)| world.reached(*id, ip.parse().unwrap()));
        world.ready(ids[1], clock.at(0.0));
        world.tick(clock.at(0.0));
        match world.view(ids[1]) {
            View::Works { master_addr, .. } => master_addr,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(met(true, ["127.0.0.1", "10.0.0.1"]), "10.0.0.1");
    assert_eq!(met(true, ["127.0.0.1", "127.0.0.1"]), "first");
    assert_eq!(met(false, ["127.0.0.1", "10.0.0.1"]), "first");
}
