//! Convolutions, pooling, attention with masks and losses, compared with torch's.

use oarlock::nn::{
    self, AdaptiveAvgPool2d, AttentionMasks, AvgPool2d, BCELoss, BCEWithLogitsLoss, Buffer, Conv1d, Conv2d,
    CosineEmbeddingLoss, CrossEntropyLoss, Flatten, Forward, GroupNorm, HuberLoss, KLDivLoss, KlReduction,
    L1Loss, Linear, MSELoss, MaxPool1d, MaxPool2d, Module, MultiHeadAttention, NLLLoss, Param, Reduction,
    Relu, Sequential, SmoothL1Loss, Unit,
};
use oarlock::optim;
use oarlock::shard::{Gather, Placements};
use oarlock::{Accelerator, AcceleratorConfig, DType, Device, Prepared, Result, ShardingConfig, Tensor};
use oarlock_tensor::cpu::difference::largest_magnitude;

use crate::layers::{assert_close, expected, floats, golden, wave};
use crate::ranks::{alone, on_ranks};

#[derive(Module)]
struct Model {
    net: Unit<Sequential>,
    lines: Unit<Sequential>,
    attn: Unit<MultiHeadAttention>,
}

/// Images, lines, queries and keys → what each part makes of them.
impl Forward<[Tensor; 4]> for Model {
    type Output = Vec<Tensor>;
    fn forward(&self, [images, lines, queries, keys]: &[Tensor; 4]) -> nn::Result<Vec<Tensor>> {
        let device = images.device();
        let padding = Tensor::from_slice(&[0, 0, 0, 1, 1, 0, 1, 0, 0, 0], [2, 5], device)?;
        let hidden = [0, 1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1];
        let hidden = Tensor::from_slice(&hidden, [3, 5], device)?;
        let bias = wave(device, &[3, 5], 0.7);
        let of_heads = wave(device, &[4, 3, 5], 0.3);
        let attend = |key: &Tensor, key_padding_mask: Option<&Tensor>, attn_mask: Option<&Tensor>| {
            let masks = AttentionMasks { key_padding_mask, attn_mask };
            self.attn.run(&(queries.clone(), key.clone()), |attn| attn.attend(queries, key, key, &masks))
        };
        Ok(vec![
            self.net.forward(images)?,
            self.lines.forward(lines)?,
            attend(keys, None, None)?,
            attend(keys, Some(&padding), None)?,
            attend(keys, None, Some(&bias))?,
            attend(keys, Some(&padding), Some(&hidden))?,
            attend(keys, None, Some(&of_heads))?,
            attend(queries, None, Some(&bias.narrow(1, 0..3)?))?,
        ])
    }
}

const OUTPUTS: [&str; 8] = ["net", "lines", "cross", "padded", "biased", "hidden", "of heads", "self"];

impl Model {
    fn new() -> nn::Result<Model> {
        Ok(Model {
            net: Unit::new(
                Sequential::new()
                    .add(Conv2d::new(3, 4, 3)?.stride(2).padding(1))
                    .add(GroupNorm::new(2, 4)?)
                    .add(Relu)
                    .add(MaxPool2d::new(3).stride(2).padding(1).ceil_mode())
                    .add(Conv2d::new(4, 6, (1, 3))?.padding((0, 1)).groups(2)?.no_bias())
                    .add(AvgPool2d::new(2).stride(1))
                    .add(AdaptiveAvgPool2d::new(1))
                    .add(Flatten::default())
                    .add(Linear::new(6, 5)?),
            ),
            lines: Unit::new(
                Sequential::new()
                    .add(Conv1d::new(3, 6, 3)?.padding(2).dilation(2))
                    .add(MaxPool1d::new(2))
                    .add(Conv1d::new(6, 6, 2)?.groups(6)?),
            ),
            attn: Unit::new(MultiHeadAttention::new(8, 2)?),
        })
    }

    fn inputs(device: &Device) -> [Tensor; 4] {
        [
            wave(device, &[2, 3, 9, 12], 0.7),
            wave(device, &[2, 3, 10], 0.7),
            wave(device, &[2, 3, 8], 0.7),
            wave(device, &[2, 5, 8], 1.1),
        ]
    }
}

fn weights(accelerator: &Accelerator, model: &Prepared<Model>) -> Vec<(String, Vec<f32>)> {
    let weights = accelerator.get_state_dict(model).unwrap();
    weights.into_iter().map(|(name, weight)| (name, weight.to_vec::<f32>().unwrap())).collect()
}

/// The outputs, and the weights before and after a step of SGD with a learning rate of 1.
type Run = (Vec<Vec<f32>>, Vec<(String, Vec<f32>)>, Vec<(String, Vec<f32>)>);

fn run(accelerator: &Accelerator) -> Result<Run> {
    let model = Model::new()?;
    let optimizer = optim::sgd(&model).lr(1.0);
    let (model, optimizer) = accelerator.prepare((model, optimizer))?;
    accelerator.load_model(&model, golden("modules.safetensors"))?;
    let before = weights(accelerator, &model);
    let outputs = model.forward(&Model::inputs(accelerator.device()))?;
    let mut loss = outputs[0].square()?.mean_all()?;
    for output in &outputs[1..] {
        loss = loss.add(&output.square()?.mean_all()?)?;
    }
    accelerator.backward(&loss)?;
    optimizer.step()?;
    let values = outputs.iter().map(|output| output.to_f32_vec()).collect::<nn::Result<_>>()?;
    Ok((values, before, weights(accelerator, &model)))
}

#[test]
fn outputs_and_gradients_are_those_of_torch() {
    let expected = expected("modules.json");
    let (outputs, before, after) = run(&alone(AcceleratorConfig::default())).unwrap();
    for (name, output) in OUTPUTS.iter().zip(&outputs) {
        assert_close(output, &floats(&expected["outputs"][name]), 2e-6, name);
    }
    let grads = expected["grads"].as_object().unwrap();
    assert_eq!(grads.len(), before.len());
    for ((name, before), (_, after)) in before.iter().zip(&after) {
        let moved: Vec<f32> = before.iter().zip(after).map(|(before, after)| before - after).collect();
        assert_close(&moved, &floats(&grads[name]), 3e-6, name);
    }
}

/// What rank 0 of two has.
fn placed<R: Send>(placements: Placements, gather: Gather, run: fn(&Accelerator) -> Result<R>) -> R {
    let shard = ShardingConfig { placements, gather, persistence_elems: 0, ..ShardingConfig::default() };
    let config = AcceleratorConfig { shard, threads: Some(1), ..AcceleratorConfig::default() };
    on_ranks(2, config, run).swap_remove(0).unwrap()
}

#[test]
fn every_placement_has_the_same_bits() {
    let of = |placements, gather| placed(placements, gather, run);
    let ddp = of(Placements::WHOLE, Gather::InPlace);
    assert!(ddp.1.iter().zip(&ddp.2).all(|(before, after)| before.1 != after.1));
    assert_eq!(of(Placements::PARAMETERS, Gather::Copy), ddp);
    assert_eq!(of(Placements::GRADIENTS, Gather::InPlace), ddp);
}

/// Frozen layers between trained ones, each a unit: their weights are needed for the gradients of their inputs.
#[derive(Module)]
struct Frozen {
    first: Unit<Conv2d>,
    norm: Unit<GroupNorm>,
    attn: Unit<MultiHeadAttention>,
    scale: Unit<Scale>,
    last: Unit<Linear>,
}

/// A parameter used by hand, also through a view of it.
#[derive(Module)]
struct Scale {
    weight: Param,
}

impl Forward<Tensor> for Scale {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        let weight = nn::parameter(&self.weight, x)?;
        x.mul(&weight)?.matmul(&weight.reshape([8, 1])?)?.mul(x)
    }
}

impl Forward<Tensor> for Frozen {
    type Output = Tensor;
    fn forward(&self, images: &Tensor) -> nn::Result<Tensor> {
        let x = self.norm.forward(&self.first.forward(images)?)?;
        let x = x.flatten(2, -1)?.transpose(1, 2)?;
        let x = self.attn.run(&x, |attn| attn.attend(&x, &x, &x, &AttentionMasks::default()))?;
        self.last.forward(&self.scale.forward(&x)?)
    }
}

/// The weights of a trained and frozen model after two steps.
fn run_frozen(accelerator: &Accelerator) -> Result<Vec<Vec<f32>>> {
    let model = Frozen {
        first: Unit::new(Conv2d::new(3, 8, 3)?),
        norm: Unit::new(GroupNorm::new(2, 8)?),
        attn: Unit::new(MultiHeadAttention::new(8, 2)?),
        scale: Unit::new(Scale { weight: nn::param([8], nn::Init::Normal { std: 1.0 })? }),
        last: Unit::new(Linear::new(8, 2)?),
    };
    nn::freeze(&model.norm);
    nn::freeze(&model.attn);
    nn::freeze(&model.scale);
    let optimizer = optim::sgd(&model).lr(0.5);
    let (model, optimizer) = accelerator.prepare((model, optimizer))?;
    for step in [0.7, 1.1] {
        let images = wave(accelerator.device(), &[2, 3, 4, 5], step);
        accelerator.backward(&model.forward(&images)?.square()?.mean_all()?)?;
        optimizer.step()?;
    }
    let weights = accelerator.get_state_dict(&model)?;
    Ok(weights.into_values().map(|weight| weight.to_vec::<f32>()).collect::<nn::Result<_>>()?)
}

#[test]
fn frozen_weights_are_borrowed_again_for_the_backward_pass_in_every_placement() {
    let ddp = placed(Placements::WHOLE, Gather::InPlace, run_frozen);
    for placements in [Placements::OPTIMIZER, Placements::GRADIENTS, Placements::PARAMETERS] {
        for gather in [Gather::InPlace, Gather::Copy] {
            assert_eq!(placed(placements, gather, run_frozen), ddp, "{placements:?}, {gather:?}");
        }
    }
}

#[test]
fn in_bf16_they_stay_near() {
    let expected = expected("modules.json");
    let config = AcceleratorConfig { mixed_precision: Some(DType::BF16), ..AcceleratorConfig::default() };
    let (outputs, ..) = run(&alone(config)).unwrap();
    for (name, output) in OUTPUTS.iter().zip(&outputs) {
        assert_close(output, &floats(&expected["outputs"][name]), 0.02, name);
    }
}

#[test]
fn losses_are_those_of_torch() {
    let expected = &expected("modules.json")["losses"];
    let accelerator = alone(AcceleratorConfig::default());
    let device = accelerator.device();
    let wave = |shape: &[usize], step| wave(device, shape, step);
    let logits = wave(&[6, 5], 0.7).scale(2.0).unwrap();
    let labels = [0, 4, -100, 2, 1, 3];
    let clamped = labels.map(|label: i32| label.max(0));
    let [labels, clamped] = [labels, clamped].map(|x| Tensor::from_slice(&x, [6], device).unwrap());
    let weight = || Some(Buffer::new([5], vec![0.5, 1.0, 2.0, 0.25, 1.5]).unwrap());
    let pos_weight = Some(Buffer::new([5], vec![1.5, 2.0, 3.0, 1.25, 2.5]).unwrap());
    let target = wave(&[6, 5], 1.3);
    let probs = target.softmax(-1).unwrap();
    let (unit, of_unit) = (logits.sigmoid().unwrap(), target.sigmoid().unwrap());
    let pairs = Tensor::from_slice(&[1f32, -1.0, 1.0, -1.0, -1.0, 1.0], [6], device).unwrap();
    let log_probs = logits.log_softmax(-1).unwrap();
    for (how, reduction, kl) in [
        ("none", Reduction::None, KlReduction::None),
        ("mean", Reduction::Mean, KlReduction::Mean),
        ("sum", Reduction::Sum, KlReduction::Sum),
    ] {
        let ce = CrossEntropyLoss { reduction, ..CrossEntropyLoss::default() };
        let smooth = CrossEntropyLoss { label_smoothing: 0.1, ..ce.clone() };
        let weighted = CrossEntropyLoss { weight: weight(), ignore_index: 4, ..ce.clone() };
        let both = CrossEntropyLoss { weight: weight(), label_smoothing: 0.2, ..ce.clone() };
        let weighted_logits =
            BCEWithLogitsLoss { weight: weight(), pos_weight: pos_weight.clone(), reduction };
        let bce_logits = BCEWithLogitsLoss { weight: None, pos_weight: None, reduction };
        let kl = |log_target| KLDivLoss { log_target, reduction: kl };
        for (name, loss) in [
            ("ce", ce.forward(&logits, &labels)),
            ("ce smooth", smooth.forward(&logits, &labels)),
            ("ce weighted", weighted.forward(&logits, &clamped)),
            ("ce both", both.forward(&logits, &labels)),
            ("ce probs", both.forward(&logits, &probs)),
            (
                "nll",
                NLLLoss { weight: weight(), reduction, ..NLLLoss::default() }.forward(&log_probs, &labels),
            ),
            ("l1", L1Loss { reduction }.forward(&logits, &target)),
            ("mse", MSELoss { reduction }.forward(&logits, &target)),
            ("smooth l1", SmoothL1Loss { beta: 0.5, reduction }.forward(&logits, &target)),
            ("huber", HuberLoss { delta: 0.7, reduction }.forward(&logits, &target)),
            ("bce", BCELoss { weight: None, reduction }.forward(&unit, &of_unit)),
            ("bce weighted", BCELoss { weight: weight(), reduction }.forward(&unit, &of_unit)),
            ("bce logits", bce_logits.forward(&logits, &of_unit)),
            ("bce logits weighted", weighted_logits.forward(&logits, &of_unit)),
            ("kl", kl(false).forward(&log_probs, &probs)),
            ("kl log", kl(true).forward(&log_probs, &probs.log().unwrap())),
            ("cosine", CosineEmbeddingLoss { margin: 0.2, reduction }.forward(&logits, &target, &pairs)),
        ] {
            let (loss, want) = (loss.unwrap().to_f32_vec().unwrap(), floats(&expected[how][name]));
            let largest = largest_magnitude(want.iter().copied()).unwrap().max(1.0) as f32;
            assert_close(&loss, &want, 2e-6 * largest, &format!("{name}, {how}"));
        }
    }
    // Where no label counts, the mean is 0.
    let none = Tensor::from_slice(&[-100; 6], [6], device).unwrap();
    let smooth = CrossEntropyLoss { label_smoothing: 0.1, ..CrossEntropyLoss::default() };
    assert_eq!(smooth.forward(&logits, &none).unwrap().item::<f32>().unwrap(), 0.0);
}

/// Attention with every setting, and its inputs.
#[derive(Module)]
struct Attends {
    attn: Unit<MultiHeadAttention>,
}

impl Forward<Tensor> for Attends {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        self.attn.call(x, |attn, x| attn.forward(x))
    }
}

fn attends(attn: MultiHeadAttention) -> (Accelerator, Prepared<Attends>) {
    let accelerator = alone(AcceleratorConfig::default());
    let model = Attends { attn: Unit::new(attn) };
    let optimizer = optim::sgd(&model);
    let (model, _) = accelerator.prepare((model, optimizer)).unwrap();
    (accelerator, model)
}

#[test]
fn masks_and_dropout_take_the_slower_path_to_the_same_place() {
    for causal in [false, true] {
        let attn = MultiHeadAttention::new(8, 4).unwrap().kv_heads(2).unwrap();
        let attn = if causal { attn.causal() } else { attn };
        let (accelerator, model) = attends(attn);
        let x = wave(accelerator.device(), &[2, 5, 8], 0.7);
        let fused = model.forward(&x).unwrap().to_f32_vec().unwrap();
        let zeros = Tensor::zeros([5, 5], DType::F32, accelerator.device()).unwrap();
        let masked = model.call(&x, |model, x| {
            let masks = AttentionMasks { attn_mask: Some(&zeros), ..AttentionMasks::default() };
            model.attn.run(x, |attn| attn.attend(x, x, x, &masks))
        });
        assert_close(&masked.unwrap().to_f32_vec().unwrap(), &fused, 2e-6, "with a bias of zero");
        let narrow = x.narrow(1, 0..3).unwrap();
        let error = model.call(&narrow, |model, narrow| {
            let masks = AttentionMasks { key_padding_mask: Some(&zeros), ..AttentionMasks::default() };
            model.attn.run(narrow, |attn| attn.attend(narrow, &x, &x, &masks))
        });
        let text = error.unwrap_err().to_string();
        assert!(text.contains("expected a key_padding_mask of shape [2, 5], got [5, 5]"), "{text}");
    }
}

#[test]
fn attention_weights_drop_in_training_only_and_alike_when_computed_again() {
    let of = |p: f32, recompute: bool, training: bool| {
        let (accelerator, model) = attends(MultiHeadAttention::new(8, 2).unwrap().causal().dropout(p));
        if training {
            model.train();
        } else {
            model.eval();
        }
        model.module().attn.unit_run().set_recompute(recompute);
        let x = wave(accelerator.device(), &[2, 5, 8], 0.7);
        let y = model.forward(&x).unwrap();
        if training {
            accelerator.backward(&y.square().unwrap().mean_all().unwrap()).unwrap();
        }
        y.to_f32_vec().unwrap()
    };
    let (plain, dropped) = (of(0.0, false, true), of(0.5, false, true));
    assert_ne!(plain, dropped);
    assert_eq!(dropped, of(0.5, true, true));
    assert_eq!(plain, of(0.5, false, false));
}
