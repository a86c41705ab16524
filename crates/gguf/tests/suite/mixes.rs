//! Mixes against what llama-quantize does.

use oarlock_gguf::{Mix, ModelFacts, TensorPlan, TensorType, is_mixed, mix_types, sort_as_llama_quantize};

fn facts(n_layers: u32) -> ModelFacts {
    ModelFacts {
        architecture: "llama".to_owned(),
        n_layers,
        n_heads: 9,
        n_kv_heads: 3,
        n_experts: 0,
        has_importance: false,
    }
}

/// The tensors of a model whose embedding is its output, such as SmolLM2-135M.
fn tensors(n_layers: u32, embedding: u64, key: u64, feed_forward: u64, vocabulary: u64) -> Vec<TensorPlan> {
    let f32 = |name: String, dims: &[u64]| TensorPlan::new(name, dims, TensorType::F32);
    let mut tensors = vec![f32("token_embd.weight".into(), &[embedding, vocabulary])];
    for layer in 0..n_layers {
        let mut add =
            |name: &str, dims: &[u64]| tensors.push(f32(format!("blk.{layer}.{name}.weight"), dims));
        add("attn_norm", &[embedding]);
        add("attn_q", &[embedding, embedding]);
        add("attn_k", &[embedding, key]);
        add("attn_v", &[embedding, key]);
        add("attn_output", &[embedding, embedding]);
        add("ffn_norm", &[embedding]);
        add("ffn_gate", &[embedding, feed_forward]);
        add("ffn_up", &[embedding, feed_forward]);
        add("ffn_down", &[feed_forward, embedding]);
    }
    tensors.push(f32("output_norm.weight".into(), &[embedding]));
    tensors
}

fn mixed(mix: Mix, facts: &ModelFacts, mut tensors: Vec<TensorPlan>) -> Vec<TensorPlan> {
    mix_types(mix, facts, &mut tensors);
    tensors
}

fn type_of(tensors: &[TensorPlan], name: &str) -> TensorType {
    tensors.iter().find(|tensor| tensor.name == name).unwrap().tensor_type
}

/// The layers in which a tensor has a type.
fn layers(tensors: &[TensorPlan], name: &str, tensor_type: TensorType) -> Vec<u32> {
    let of_type = tensors.iter().filter(|tensor| tensor.tensor_type == tensor_type);
    of_type.filter(|tensor| tensor.name.contains(name)).filter_map(TensorPlan::layer).collect()
}

#[test]
fn rows_that_are_not_blocks_of_256_get_smaller_blocks() {
    let found = mixed(Mix::Q4_K_M, &facts(30), tensors(30, 576, 192, 1536, 49152));
    let more = [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 26, 27, 28, 29];
    assert_eq!(type_of(&found, "token_embd.weight"), TensorType::Q8_0);
    assert_eq!(type_of(&found, "blk.3.attn_q.weight"), TensorType::Q5_0);
    assert_eq!(type_of(&found, "blk.3.attn_norm.weight"), TensorType::F32);
    assert_eq!(layers(&found, "attn_v", TensorType::Q8_0), more);
    assert_eq!(layers(&found, "attn_v", TensorType::Q5_0).len(), 16);
    assert_eq!(layers(&found, "ffn_down", TensorType::Q6_K), more);
    assert_eq!(layers(&found, "ffn_down", TensorType::Q4_K).len(), 16);
    let n_bytes: u64 = found
        .iter()
        .map(|tensor| {
            tensor.tensor_type.row_bytes(tensor.dims[0]).unwrap() * tensor.dims[1..].iter().product::<u64>()
        })
        .sum();
    assert_eq!(n_bytes, 103_668_480);
    // A row that is not a multiple of 32 either.
    let found = mixed(Mix::Q4_K_M, &facts(8), tensors(8, 40, 40, 48, 100));
    assert_eq!(type_of(&found, "blk.4.attn_q.weight"), TensorType::F16);
}

#[test]
fn the_rules_of_the_other_mixes() {
    let of = |mix: Mix| mixed(mix, &facts(16), tensors(16, 512, 256, 1024, 1000));
    let first_two = [0, 1];
    let found = of(Mix::Q3_K_M);
    assert_eq!(type_of(&found, "token_embd.weight"), TensorType::Q6_K);
    assert_eq!(layers(&found, "attn_v", TensorType::Q5_K), first_two);
    assert_eq!(layers(&found, "attn_v", TensorType::Q4_K).len(), 14);
    assert_eq!(layers(&found, "ffn_down", TensorType::Q5_K), [0]);
    assert_eq!(layers(&found, "attn_output", TensorType::Q4_K).len(), 16);
    assert_eq!(type_of(&found, "blk.0.attn_k.weight"), TensorType::Q3_K);
    let found = of(Mix::Q3_K_L);
    for name in ["attn_v", "ffn_down", "attn_output"] {
        assert_eq!(layers(&found, name, TensorType::Q5_K).len(), 16);
    }
    let found = of(Mix::Q4_K_S);
    assert_eq!(layers(&found, "attn_v", TensorType::Q5_K), [0, 1, 2, 3]);
    assert_eq!(layers(&found, "ffn_down", TensorType::Q5_K), first_two);
    let found = of(Mix::Q5_K_M);
    assert_eq!(layers(&found, "attn_v", TensorType::Q6_K), [0, 1, 4, 7, 10, 13, 14, 15]);
    let found = of(Mix::Q2_K);
    assert_eq!(layers(&found, "attn_v", TensorType::Q3_K).len(), 16);
    assert_eq!(layers(&found, "ffn_down", TensorType::Q3_K).len(), 16);
    let shared = ModelFacts { n_heads: 12, ..facts(16) };
    let found = mixed(Mix::Q2_K, &shared, tensors(16, 512, 256, 1024, 1000));
    assert_eq!(layers(&found, "attn_v", TensorType::Q4_K).len(), 16);
    let found = of(Mix::Q8_0);
    assert!(found.iter().all(|tensor| !is_mixed(tensor) || tensor.tensor_type == TensorType::Q8_0));
    let found = of(Mix::BF16);
    assert_eq!(type_of(&found, "token_embd.weight"), TensorType::BF16);
    assert_eq!(type_of(&found, "output_norm.weight"), TensorType::F32);
    // An importance lets the first layers keep a minimum.
    assert_eq!(layers(&of(Mix::Q4_0), "ffn_down", TensorType::Q4_1), []);
    let weighted = ModelFacts { has_importance: true, ..facts(16) };
    let found = mixed(Mix::Q4_0, &weighted, tensors(16, 512, 256, 1024, 1000));
    assert_eq!(layers(&found, "ffn_down", TensorType::Q4_1), first_two);
}

#[test]
fn an_output_of_its_own_leaves_the_embedding_alone() {
    let mut tensors = tensors(8, 512, 256, 1024, 1000);
    tensors.push(TensorPlan::new("output.weight", [512, 1000], TensorType::F32));
    let found = mixed(Mix::Q4_K_M, &facts(8), tensors);
    assert_eq!(type_of(&found, "output.weight"), TensorType::Q6_K);
    assert_eq!(type_of(&found, "token_embd.weight"), TensorType::Q4_K);
}

#[test]
fn models_of_eight_experts_and_of_70b_have_their_own_rules() {
    let experts = ModelFacts { n_experts: 8, ..facts(16) };
    let found = mixed(Mix::Q4_K_M, &experts, tensors(16, 512, 256, 1024, 1000));
    assert_eq!(layers(&found, "attn_v", TensorType::Q8_0).len(), 16);
    assert_eq!(layers(&found, "attn_k", TensorType::Q8_0).len(), 16);
    assert_eq!(layers(&found, "attn_output", TensorType::Q5_K).len(), 16);
    let found = mixed(Mix::Q4_K_M, &facts(80), tensors(80, 512, 256, 1024, 1000));
    assert_eq!(layers(&found, "attn_v", TensorType::Q4_K), []);
    assert_eq!(layers(&found, "attn_v", TensorType::Q5_K).len(), 40);
    let plan = TensorPlan::new("blk.0.ffn_up_exps.weight", [512, 64, 8], TensorType::F32);
    let found = mixed(Mix::MXFP4_MOE, &experts, vec![plan]);
    assert_eq!(found[0].tensor_type, TensorType::MXFP4);
}

/// llama.cpp once gave them other types. Files of November 2026 have these.
#[test]
fn fused_tensors_with_values_count_as_values() {
    let fused =
        |layer: u32| TensorPlan::new(format!("blk.{layer}.attn_qkv.weight"), [256, 512], TensorType::F32);
    let of = |mix: Mix| mixed(mix, &facts(16), (0..16).map(fused).collect());
    let more = [0, 1, 4, 7, 10, 13, 14, 15];
    assert_eq!(layers(&of(Mix::Q4_K_M), "attn_qkv", TensorType::Q6_K), more);
    assert_eq!(layers(&of(Mix::Q4_K_M), "attn_qkv", TensorType::Q4_K).len(), 8);
    assert_eq!(layers(&of(Mix::Q5_K_M), "attn_qkv", TensorType::Q6_K), more);
    assert_eq!(layers(&of(Mix::Q3_K_M), "attn_qkv", TensorType::Q5_K), [0, 1]);
}

#[test]
fn names_and_numbers_of_mixes() {
    assert_eq!(Mix::from_name("q4_k_m"), Some(Mix::Q4_K_M));
    assert_eq!(Mix::from_name("Q5_K"), Some(Mix::Q5_K_M));
    assert_eq!(Mix::from_name("Q7"), None);
    assert_eq!((Mix::Q4_K_M.file_type(), Mix::BF16.file_type()), (15, 32));
    assert!(Mix::ALL.iter().all(|mix| Mix::from_name(mix.name()) == Some(*mix)));
    let plan = TensorPlan::new("blk.0.attn_q.weight", [256, 2], TensorType::Q2_K);
    assert!(Mix::Q2_K_S.needs_importance(&plan) && !Mix::Q2_K.needs_importance(&plan));
}

#[test]
fn tensors_are_written_by_layer_and_name() {
    let names = ["output_norm.weight", "blk.10.a", "blk.2.b", "blk.2.a", "token_embd.weight"];
    let mut tensors: Vec<_> = names.iter().map(|name| TensorPlan::new(*name, [1], TensorType::F32)).collect();
    sort_as_llama_quantize(&mut tensors);
    let names: Vec<_> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["output_norm.weight", "token_embd.weight", "blk.2.a", "blk.2.b", "blk.10.a"]);
}
