//! A model larger than the memory that a rank may have trains with its state on disk, and is refused without.

use crate::common::{Site, run};

/// A model of 12 million parameters; training it in f32 takes 190 MB of states.
const CONFIG: &str = r#"{
  "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 1024,
  "num_hidden_layers": 12, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCAB,
  "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "hidden_act": "silu",
  "rope_theta": 10000.0, "torch_dtype": "float32"
}"#;

/// Private memory of the process, in KiB: enough for gradients and windows, not for the optimizer's state as well.
const LIMIT_KIB: usize = 180 * 1024;

fn site() -> Site {
    let site = Site::new();
    let text = String::from_utf8(site.read("model/config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&text).unwrap();
    let vocab = config["vocab_size"].to_string();
    site.write("model/config.json", &CONFIG.replace("VOCAB", &vocab));
    site
}

#[test]
#[ignore = "heavy"]
fn state_on_disk_trains_what_memory_does_not_hold() {
    let site = site();
    let disk = site.path("disk");
    std::fs::create_dir_all(&disk).unwrap();
    let nvme = format!("{{device: nvme, nvme_path: {}, buffer_count: 3}}", disk.display());
    let zero = |stage: usize, more: &str| {
        format!("deepspeed={{zero_optimization: {{stage: {stage}, sub_group_size: 200000, {more}}}}}")
    };
    let optimizer = zero(1, &format!("offload_optimizer: {nvme}"));
    let both = zero(
        3,
        &format!(
            "offload_optimizer: {nvme}, offload_param: {nvme}, stage3_prefetch_bucket_size: 0, \
             stage3_param_persistence_threshold: 0"
        ),
    );
    let common =
        ["train_from_scratch=true", "num_processes=1", "max_steps=3", "bf16=false", "save_strategy=no"];
    let train = |output: &str, limit_kib: Option<usize>, more: &[&str]| {
        let limit = limit_kib.map_or("unlimited".to_string(), |kib| kib.to_string());
        let mut command = site.shell(&format!("ulimit -d {limit}; exec \"$0\" \"$@\""));
        command.args(["train", "train.yaml", &format!("output_dir={output}")]).args(common).args(more);
        run(command)
    };
    let free = train("free", None, &[]);
    assert_eq!(free.code, Some(0), "{free:?}");
    // Known before anything is loaded.
    let refused = train("refused", Some(LIMIT_KIB), &[]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("offloaded to NVMe"), "{refused:?}");
    // Found out when the memory is wanted.
    let failed = train("failed", Some(LIMIT_KIB), &["memory_check=false"]);
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert!(failed.stderr.to_lowercase().contains("cannot allocate"), "{failed:?}");
    for (output, way) in [("optimizer", &optimizer), ("both", &both)] {
        let said = train(output, Some(LIMIT_KIB), &[way]);
        assert_eq!(said.code, Some(0), "{said:?}");
        assert_eq!(site.losses(output), site.losses("free"), "{output}");
        assert_eq!(site.model(output), site.model("free"), "{output}");
    }
    assert_eq!(std::fs::read_dir(&disk).unwrap().count(), 0);
}
