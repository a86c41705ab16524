//! DeepSpeed's learning-rate schedules, with arguments as a user writes them.

use oarlock::optim::Schedule;

use super::super::*;

/// Rates agree as closely as two ways to compute them in f64 can.
fn assert_close(found: f64, expected: f64, what: &str) {
    assert!(
        (found - expected).abs() <= 1e-15 + 1e-12 * expected.abs(),
        "{what}: {found:e}, not {expected:e}"
    );
}

/// Values of DeepSpeed 0.19.8, written by bench/golden/make_optimizers.py; arguments come as a user writes them.
#[test]
fn schedules_are_those_of_deepspeed() {
    let golden = include_str!("../../../tests/golden/deepspeed_schedules.json");
    let cases: Vec<serde_json::Value> = serde_json::from_str(golden).unwrap();
    for case in &cases {
        let words = [
            "model_name_or_path=m".to_owned(),
            "dataset=d.jsonl".to_owned(),
            "output_dir=out".to_owned(),
            format!("lr_scheduler_type={}", case["name"].as_str().unwrap()),
            format!("learning_rate={}", case["lr"]),
            format!("lr_scheduler_kwargs={}", case["kwargs"]),
        ];
        let arguments = written::arguments(&Words::new(&words)).unwrap();
        let config = train_config(&arguments, &|_| None).unwrap();
        let schedule = Schedule::new(&config.train.schedule, 9, 3);
        for point in case["points"].as_array().unwrap() {
            let at = |index: usize| point[index].as_f64().unwrap();
            let step = at(0) as u64;
            assert_close(schedule.lr(step), at(1), &format!("{words:?} at {step}"));
            match schedule.betas(step) {
                Some(betas) => {
                    assert_close(betas[0], at(2), &format!("momentum of {words:?} at {step}"));
                    assert_close(betas[1], at(3), "second beta");
                }
                None => assert_eq!([at(2), at(3)], [0.9, 0.999], "{words:?} at {step}"),
            }
        }
    }
    assert_eq!(cases.len(), 12);
}

#[test]
fn lengths_default_to_those_of_the_run() {
    let rate = |text: &str, step: u64| {
        let words = format!(
            "model_name_or_path=m dataset=d.jsonl output_dir=out learning_rate=1e-3 lr_scheduler_type={text}"
        );
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        let config = train_config(&written::arguments(&Words::new(&words)).unwrap(), &|_| None).unwrap();
        assert!(matches!(config.train.schedule.shape, Shape::DeepSpeed(_)));
        Schedule::new(&config.train.schedule, 100, 1).lr(step)
    };
    assert_close(rate("WarmupDecayLR warmup_steps=20", 21), 1e-3, "top after the run's warm-up");
    assert_close(rate("WarmupDecayLR warmup_steps=20", 101), 0.0, "zero after the run");
    assert_close(rate("WarmupLR lr_scheduler_kwargs.warmup_type=linear", 501), 5e-4, "1000 steps up");
    assert_close(rate("WarmupCosineLR warmup_ratio=0.2", 100), 1e-7, "the floor at the end");
}
