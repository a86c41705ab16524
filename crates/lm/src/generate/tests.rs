//! Generation on the golden models, with a tokenizer and chat templates made here.

use std::ops::ControlFlow;
use std::path::Path;

use oarlock_engine::Result;
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::cpu::difference::largest_difference;
use oarlock_tensor::ops::Mask;
use oarlock_tensor::{DType, Device, Par, Tensor};
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::data::{ChatTemplate, Tokenizer};
use crate::model::LayerCache;
use crate::model::hf::load_for_inference;

fn generator(name: &str, dtype: DType, n_positions: usize) -> Generator {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../oarlock/tests/golden").join(name);
    let device = Device::strict(Isa::detect(), Par::solo());
    Generator::new(load_for_inference(&dir, &device, dtype, n_positions).unwrap())
}

fn next_logits(generator: &Generator, ids: &[u32], cache: &mut [LayerCache]) -> Vec<f32> {
    generator.as_model().next_logits(ids, cache).unwrap().to_f32_vec().unwrap()
}

fn options(max_new_tokens: usize) -> GenerateOptions {
    GenerateOptions { max_new_tokens, ..GenerateOptions::default() }
}

fn go_on(_: u32) -> Result<ControlFlow<()>> {
    Ok(ControlFlow::Continue(()))
}

/// A word-level tokenizer over the 61 ids of the golden models: "w3" to "w58", and "é" as two tokens of one byte each.
fn tokenizer(template: &str) -> (TempDir, Tokenizer) {
    let dir = tempfile::tempdir().unwrap();
    let mut vocab = serde_json::Map::new();
    for (id, token) in ["<pad>", "<s>", "</s>"].iter().enumerate() {
        vocab.insert(token.to_string(), json!(id));
    }
    (3..59).for_each(|id| drop(vocab.insert(format!("w{id}"), json!(id))));
    vocab.insert("<0xC3>".to_string(), json!(59));
    vocab.insert("<0xA9>".to_string(), json!(60));
    let added = |id: u32, content: &str| json!({ "id": id, "content": content, "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false });
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [added(0, "<pad>"), added(1, "<s>"), added(2, "</s>")],
        "pre_tokenizer": { "type": "WhitespaceSplit" },
        "decoder": { "type": "ByteFallback" },
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "<pad>" },
    });
    std::fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
    let config = json!({ "bos_token": "<s>", "eos_token": { "content": "</s>" }, "chat_template": template });
    std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let tokenizer = Tokenizer::open(dir.path()).unwrap();
    (dir, tokenizer)
}

#[test]
fn the_cache_gives_the_tokens_of_a_full_pass() {
    for name in ["llama", "qwen3", "minimind-seed"] {
        let generator = generator(name, DType::F32, 64);
        let answer = generator.generate(&[1, 5, 17, 8], &options(20), go_on).unwrap();
        assert_eq!((answer.stop, answer.n_tokens), (Stop::MaxNewTokens, 20));
        let mut ids = vec![1i32, 5, 17, 8];
        for &token in &answer.output {
            let tensor = Tensor::from_slice(&ids, [1, ids.len()], &generator.model.device).unwrap();
            let logits =
                generator.model.decoder.logits(&tensor, &Mask::Causal).unwrap().to_vec::<f32>().unwrap();
            let last = &logits[logits.len() - 61..];
            let best = (0..61).max_by(|&a, &b| last[a].total_cmp(&last[b])).unwrap();
            assert_eq!(best as u32, token, "{name} after {} tokens", ids.len());
            ids.push(token as i32);
        }
    }
}

#[test]
fn many_prompts_are_answered_as_each_alone() {
    let prompts: Vec<Prompt> = (0..9u32)
        .map(|i| Prompt {
            number: u64::from(i),
            ids: (0..=i * 3 % 11).map(|j| 3 + (i * 17 + j * 7) % 50).collect(),
        })
        .collect();
    for name in ["llama", "qwen3", "minimind-seed"] {
        let generator = generator(name, DType::F32, 32);
        let stop_ids = generator.generate(&prompts[4].ids, &options(6), go_on).unwrap().output[3..4].to_vec();
        let greedy = GenerateOptions { stop_ids, ..options(25) };
        let alone: Vec<_> =
            prompts.iter().map(|prompt| generator.generate(&prompt.ids, &greedy, go_on).unwrap()).collect();
        assert!(alone.iter().any(|answer| answer.stop == Stop::EndOfText), "{name}");
        assert!(alone.iter().any(|answer| answer.stop == Stop::ModelLength), "{name}");
        for at_once in [1, 4, 20] {
            assert_eq!(
                generator.generate_batch(&prompts, &greedy, at_once).unwrap(),
                alone,
                "{name} {at_once}"
            );
        }
        // What is drawn depends on the number of the prompt, not on what is generated beside it.
        let sampling = Sampling { temperature: 1.0, seed: 7, ..Sampling::GREEDY };
        let drawn = GenerateOptions { sampling, ..options(10) };
        let together = generator.generate_batch(&prompts, &drawn, 5).unwrap();
        let second = generator.generate_batch(&prompts[1..2], &drawn, 1).unwrap();
        assert_eq!(together[1], second[0], "{name}");
        assert_eq!(together[0], generator.generate(&prompts[0].ids, &drawn, go_on).unwrap(), "{name}");
    }
}

#[test]
fn a_prompt_longer_than_a_part_is_taken_in_parts() {
    let generator = generator("minimind", DType::F32, 64);
    let prompt: Vec<u32> = (0..40).map(|i| 3 + i * 7 % 50).collect();
    let mut cache = generator.as_model().empty_cache(64).unwrap();
    let whole = next_logits(&generator, &prompt, &mut cache);
    let mut cache = generator.as_model().empty_cache(64).unwrap();
    let parts: Vec<_> = prompt.chunks(16).map(|part| next_logits(&generator, part, &mut cache)).collect();
    let far = largest_difference(&whole, parts.last().unwrap()).unwrap();
    assert!(far < 1e-5, "{far}");
}

#[test]
fn an_answer_ends_for_each_reason() {
    let generator = generator("llama", DType::BF16, 12);
    let free = generator.generate(&[1, 5], &options(50), go_on).unwrap();
    assert_eq!((free.stop, free.n_tokens), (Stop::ModelLength, 10));
    let stop_id = free.output[4];
    let first = free.output.iter().position(|&id| id == stop_id).unwrap();
    let with_stop = GenerateOptions { stop_ids: vec![stop_id], ..options(50) };
    let stopped = generator.generate(&[1, 5], &with_stop, go_on).unwrap();
    assert_eq!((stopped.stop, &stopped.output[..]), (Stop::EndOfText, &free.output[..first]));
    let mut seen = Vec::new();
    let caller = generator.generate(&[1, 5], &options(50), |id| {
        seen.push(id);
        Ok(if seen.len() == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    });
    assert_eq!((caller.unwrap().stop, &seen[..]), (Stop::Caller, &free.output[..3]));
    assert_eq!(generator.generate(&[1, 5], &options(0), go_on).unwrap().n_tokens, 0);
}

#[test]
fn prompts_that_do_not_fit_are_explained() {
    let generator = generator("llama", DType::F32, 12);
    let error = |prompt: &[u32]| generator.generate(prompt, &options(5), go_on).err().unwrap().to_string();
    assert!(error(&[]).contains("the prompt is empty"));
    assert!(error(&[3; 12]).contains("the prompt has 12 tokens, but the longest sequence is 12"));
    assert!(error(&[3, 61]).contains("holds token 61, but the model knows 61"));
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let generator = generator("qwen3", DType::F32, 64);
    let text = |seed| {
        let sampling = Sampling {
            temperature: 1.0,
            top_k: 50,
            top_p: 0.9,
            repetition_penalty: 1.1,
            seed,
            ..Sampling::GREEDY
        };
        generator.generate(&[1, 7], &GenerateOptions { sampling, ..options(30) }, go_on).unwrap().output
    };
    assert_eq!(text(1), text(1));
    assert_ne!(text(1), text(2));
}

#[test]
fn streamed_text_has_whole_characters_and_is_the_answer() {
    let (_dir, tokenizer) = tokenizer("");
    let generator = generator("qwen2", DType::F32, 64);
    let sampling = Sampling { temperature: 3.0, seed: 3, ..Sampling::GREEDY };
    let mut shown = Vec::new();
    let answer =
        generator.generate_text(&tokenizer, "w5 w9", &GenerateOptions { sampling, ..options(50) }, |piece| {
            shown.push(piece.to_string());
            Ok(ControlFlow::Continue(()))
        });
    let answer = answer.unwrap();
    assert_eq!(shown.concat(), answer.output);
    assert!(shown.iter().all(|piece| !piece.is_empty()));
    let ids = generator.generate(
        &tokenizer.encode("w5 w9").unwrap(),
        &GenerateOptions { sampling, ..options(50) },
        go_on,
    );
    assert_eq!(answer.output, tokenizer.decode(&ids.unwrap().output, true).unwrap());
    assert_eq!(generator.stop_ids(&tokenizer), [2]);
}

const CHAT: &str =
    "{% for m in messages %}{{ m.role == 'user' and 'w3' or 'w4' }} {{ m.content }} {% endfor %}";

#[test]
fn a_chat_keeps_its_history_until_it_is_cleared() {
    let (dir, tokenizer) = tokenizer(CHAT);
    let template = ChatTemplate::read(dir.path()).unwrap();
    let generator = generator("qwen3", DType::F32, 40);
    let sampling = Sampling { temperature: 3.0, seed: 5, ..Sampling::GREEDY };
    let sampled = || GenerateOptions { sampling, ..options(6) };
    let mut chat = Chat::new(&generator, &tokenizer, &template, sampled(), Some("w20"));
    let mut out = Vec::new();
    let input = "w5 w6\n\nw7\nclear\nw8\nexit\nw9\n";
    chat.run(&mut input.as_bytes(), &mut out).unwrap();
    let said: Vec<_> = chat.history().iter().map(|m| m.role.as_str()).collect();
    assert_eq!(said, ["user", "assistant"]);
    assert_eq!(chat.history()[0].content, "w8");
    let out = String::from_utf8(out).unwrap();
    assert_eq!(out.matches("User: ").count(), 6, "{out}");
    assert_eq!(out.matches("Assistant: ").count(), 3, "{out}");
    assert!(out.contains("The conversation is forgotten."));

    // Each turn sees the turns before it.
    let again = |turns: &[&str]| {
        let mut chat = Chat::new(&generator, &tokenizer, &template, sampled(), None);
        turns.iter().map(|t| chat.reply(t, |_| Ok(ControlFlow::Continue(()))).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(again(&["w5", "w6"])[0], again(&["w5"])[0]);
    assert_ne!(again(&["w5", "w6"])[1], again(&["w6"])[0]);

    let long = "w5 ".repeat(50) + "\nw6\n";
    let mut out = Vec::new();
    let mut chat = Chat::new(&generator, &tokenizer, &template, sampled(), None);
    chat.run(&mut long.as_bytes(), &mut out).unwrap();
    assert!(String::from_utf8(out).unwrap().contains("`clear` starts a new conversation"));
    assert_eq!((chat.history().len(), chat.history()[0].content.as_str()), (2, "w6"));
}

#[test]
fn a_call_is_kept_apart_and_its_result_asked_for() {
    let (dir, tokenizer) = tokenizer(CHAT);
    let template = ChatTemplate::read(dir.path()).unwrap();
    let generator = generator("qwen3", DType::F32, 60);
    let chat = || Chat::new(&generator, &tokenizer, &template, options(3), None);
    assert!(chat().with_tools(json!([{"parameters": {}}])).is_err());
    let mut chat = chat().with_tools(json!([{"function": {"name": "tide", "parameters": {}}}])).unwrap();
    chat.remember(r#"w5 <tool_call>{"name": "tide", "arguments": {"place": "weir"}}</tool_call>"#);
    assert_eq!((chat.calls().len(), chat.calls()[0].name.as_str()), (1, "tide"));
    let mut out = Vec::new();
    chat.run(&mut "w6\nw7\n".as_bytes(), &mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    assert!(out.starts_with("Tool: Assistant: ") && out.contains("\nUser: Assistant: "), "{out}");
    let said: Vec<_> = chat.history().iter().map(|m| m.role.as_str()).collect();
    assert_eq!(said, ["assistant", "tool", "assistant", "user", "assistant"]);
    assert_eq!(chat.history()[0].content, "w5");
    assert_eq!(chat.history()[0].extra["tool_calls"][0]["function"]["arguments"]["place"], "weir");
}

#[test]
fn any_number_of_new_tokens_ends_with_the_longest_sequence() {
    let generator = generator("llama", DType::F32, 16);
    let answer = generator.generate(&[1, 5, 17, 8], &options(usize::MAX), go_on).unwrap();
    assert_eq!((answer.stop, answer.n_tokens), (Stop::ModelLength, 12));
}

#[test]
fn the_choice_after_prompts_that_begin_alike_is_that_after_each_alone() {
    let generator = generator("llama", DType::F32, 64);
    let prompts = [&[1, 5, 17, 8, 9][..], &[1, 5, 17, 8], &[1, 5, 17, 30, 31, 32, 33], &[1, 5, 17, 8, 9, 10]];
    let prompts = prompts.map(<[u32]>::to_vec);
    let choices: Vec<u32> = (40..60).collect();
    let chosen = generator.choose(&prompts, &choices).unwrap();
    for (prompt, &chosen) in prompts.iter().zip(&chosen) {
        let mut cache = generator.as_model().empty_cache(prompt.len()).unwrap();
        let logits = next_logits(&generator, prompt, &mut cache);
        let of = |&id: &u32| logits[id as usize];
        assert!(choices.iter().all(|id| of(id) <= of(&choices[chosen]) + 1e-5), "{prompt:?}");
    }
    assert!(chosen.iter().any(|&one| one != chosen[0]), "{chosen:?}");
    assert!(generator.choose(&[], &choices).unwrap().is_empty());
    for (prompts, choices) in [(vec![vec![]], vec![3]), (vec![vec![1]], vec![]), (vec![vec![1]], vec![1000])]
    {
        assert!(generator.choose(&prompts, &choices).is_err(), "{prompts:?} {choices:?}");
    }
}
