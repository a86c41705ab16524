//! `oarlock plan`: measures, predicts, recommends, and says what is wrong with its words.

use serde_json::Value;

use crate::common::{Site, run};

const PLAN: [&str; 8] = [
    "plan",
    "train.yaml",
    "output_dir=out",
    "per_device_train_batch_size=2",
    "gradient_accumulation_steps=2",
    "num_processes=2",
    "max_steps=100",
    "num_threads_per_process=1",
];

#[test]
fn a_measured_profile_gives_the_same_plan_again_and_others_from_it() {
    let site = Site::new();
    let said = run(site.oarlock(&[&PLAN[..], &["--profile", "here.json", "--watts", "100"]].concat()));
    assert_eq!(said.code, Some(0), "{said:?}");
    for word in
        ["ZeRO-1", "DDP", "2 stages", "recommended: ", "tokens/s", "ETA", "energy", "a step has 8 sequences"]
    {
        assert!(said.stdout.contains(word), "it does not say {word:?}: {said:?}");
    }
    assert!(said.stderr.contains("measured in"), "{said:?}");
    assert!(!site.path("out").exists(), "nothing is trained");

    let json = |words: &[&str]| -> Value {
        let said = run(site.oarlock(&[&PLAN[..], &["--profile", "here.json", "--json"], words].concat()));
        assert!(said.stderr.is_empty(), "{said:?}");
        serde_json::from_str(&said.stdout).unwrap_or_else(|_| panic!("{said:?}"))
    };
    let plan = json(&[]);
    // The memory of the program itself differs from process to process; all else is computed from the profile.
    let times = |plan: &Value| -> Vec<(Value, Value)> {
        let predictions = plan["predictions"].as_array().unwrap();
        predictions.iter().map(|one| (one["placement"].clone(), one["step"].clone())).collect()
    };
    assert_eq!(times(&plan), times(&json(&[])));
    let profile: Value = serde_json::from_slice(&site.read("here.json")).unwrap();
    assert_eq!(plan["profile"], profile);
    let passes = profile["passes"].as_array().unwrap();
    // Micro-batches of 1, 2 and 4, with and without recomputation.
    assert_eq!(passes.len(), 6);
    let forward =
        |one: &Value| ["ends", "blocks"].iter().filter_map(|half| one["forward"][half].as_f64()).sum::<f64>();
    assert!(passes.iter().all(|one| forward(one) > 0.0), "{profile:?}");
    let predictions = plan["predictions"].as_array().unwrap();
    for one in predictions {
        let count = |key: &str| one[key].as_u64().unwrap();
        let ranks = 2 / count("pipeline_stages");
        assert_eq!(count("batch") * count("accumulation") * ranks, 8, "{one:?}");
        assert!(one["step"].as_f64() > Some(0.0) && one["fits"] == true, "{one:?}");
        let end = one["to_the_end"].as_f64().unwrap();
        assert!((end - 100.0 * one["step"].as_f64().unwrap()).abs() < 1e-6 * end);
    }
    assert!(predictions.contains(&plan["recommended"]));

    // The same machine twice, with a link between.
    let words =
        ["--machines", "2", "--ranks", "2", "--bandwidth", "1Gbit/s", "--latency", "0.2ms", "--steps", "7"];
    let plan = json(&words);
    assert_eq!(
        (plan["network"]["latency"].as_f64(), plan["network"]["bandwidth"].as_f64()),
        (Some(2e-4), Some(125e6))
    );
    assert_eq!(plan["steps"], 7);
    let predictions = plan["predictions"].as_array().unwrap();
    assert!(predictions.iter().any(|one| one["placement"] == "HYBRID_SHARD"));
    assert!(predictions.iter().all(|one| one["sent"].as_f64() > Some(0.0)));
    // What nothing fits into is not recommended.
    let plan = json(&["--memory", "1MB"]);
    assert!(plan["recommended"].is_null() && plan["predictions"][0]["fits"] == false);

    for (words, message) in [
        (&["bf16=true"][..], "dtype: f32, not bf16"),
        (&["--ranks", "1"], "ranks: 2, not 1"),
        (&["--batches", "8"], "no micro-batches of 8 sequences"),
    ] {
        let said = run(site.oarlock(&[&PLAN[..], &["--profile", "here.json"], words].concat()));
        assert!(said.code != Some(0) && said.stderr.contains(message), "{words:?}: {said:?}");
    }
}

#[test]
fn what_cannot_be_planned_is_told() {
    let site = Site::new();
    for (words, message) in [
        (&["plan"][..], "FILE.yaml"),
        (&["plan", "absent.yaml"], "absent.yaml"),
        (&["plan", "train.yaml", "output_dir=out", "--ranks", "0"], "0 is not in 1..=1024"),
        (&["plan", "train.yaml", "output_dir=out", "--machines", "0"], "0 is not in 1.."),
        (&["plan", "train.yaml", "output_dir=out", "--bandwidth", "fast"], "10Gbit/s"),
        (&["plan", "train.yaml", "output_dir=out", "--bandwidth", "10"], "write a number with its unit"),
        (&["plan", "train.yaml", "output_dir=out", "--latency", "soon"], "0.5ms"),
        (&["plan", "train.yaml", "output_dir=out", "--memory", "64X"], "is not a size"),
        (&["plan", "train.yaml", "output_dir=out", "--watts", "0"], "a number of watts"),
        (&["plan", "train.yaml", "output_dir=out", "--batches", "0"], "at least one sequence"),
        (&["plan", "train.yaml", "output_dir=out", "--machines", "2"], "need --bandwidth and --latency"),
        (&["plan", "train.yaml", "output_dir=out", "--latency", "1ms"], "one machine has no link"),
        (&["plan", "train.yaml", "output_dir=out", "--ranks", "7"], "cannot be divided over 7 ranks"),
        (&["plan", "train.yaml", "output_dir=out", "nonsense=1"], "nonsense"),
        (&["plan", "train.yaml", "output_dir=out", "stage=dpo"], "a training run on pairs"),
        (
            &["plan", "train.yaml", "output_dir=out", "sequence_parallel_size=2", "num_processes=2"],
            "not predicted yet",
        ),
        (&["plan", "--link"], "start one rank on each"),
    ] {
        let said = run(site.oarlock(words));
        assert_ne!(said.code, Some(0), "{words:?}");
        assert!(said.stderr.contains(message) && !said.stderr.contains("panicked"), "{words:?}: {said:?}");
    }
}
