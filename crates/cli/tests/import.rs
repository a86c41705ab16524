//! A run that began under DeepSpeed goes on: imported by the command, trained further by the command.

use std::fs;
use std::path::Path;

use crate::common::{Site, run};

/// Words for the 13 tokens of the model that DeepSpeed trained.
const TOKENIZER: &str = r#"{
  "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
  "pre_tokenizer": { "type": "WhitespaceSplit" }, "post_processor": null, "decoder": null,
  "model": { "type": "WordLevel", "unk_token": "the", "vocab": {
    "the": 0, "a": 1, "ferry": 2, "weir": 3, "lock": 4, "oar": 5, "reed": 6, "heron": 7, "rain": 8, "north": 9,
    "bank": 10, "slow": 11, "river": 12 } }
}"#;

fn golden(case: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/deepspeed").join(case);
    path.to_str().unwrap().to_string()
}

#[test]
fn what_deepspeed_began_goes_on() {
    for words in [&["bf16=true", "deepspeed={zero_optimization: {stage: 3}}"][..], &["bf16=false"]] {
        let site = Site::new();
        let said = run(site.oarlock(&["import-checkpoint", &golden("stage1-bf16"), "out/checkpoint-3"]));
        assert_eq!(said.code, Some(0), "{said:?}");
        assert!(said.stdout.contains("step 3"), "{said:?}");
        // The folder is a model as well, but for the tokenizer that the test makes up.
        site.write("out/checkpoint-3/tokenizer.json", TOKENIZER);
        fs::remove_dir_all(site.path("model")).unwrap();
        fs::create_dir(site.path("model")).unwrap();
        for name in ["config.json", "tokenizer.json"] {
            fs::copy(site.path("out/checkpoint-3").join(name), site.path("model").join(name)).unwrap();
        }
        let record = r#"{"text": "the slow river the ferry a heron rain north bank lock oar reed weir"}"#;
        site.write("text.jsonl", &[record; 40].join("\n"));
        let said = site.train(
            "again",
            &[words, &["resume_from_checkpoint=out/checkpoint-3", "max_steps=5", "cutoff_len=12"]].concat(),
        );
        assert!(said.stdout.contains("Resuming training from out/checkpoint-3."), "{said:?}");
        let message = "warning: out/checkpoint-3 does not say with which settings and data it was made";
        assert!(said.stdout.contains(message), "{said:?}");
        assert!(said.stdout.contains("done: 5 steps"), "{said:?}");
        let losses = site.losses("again");
        assert_eq!(losses.len(), 2, "{losses:?}");
    }
}

#[test]
fn what_is_no_checkpoint_of_deepspeed_is_refused() {
    let site = Site::new();
    let said = run(site.oarlock(&["import-checkpoint", "model", "out"]));
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.stderr.contains("model cannot be imported: it lacks zero_pp_rank_0"), "{said:?}");
    assert!(!site.path("out").exists());
}
