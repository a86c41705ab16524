//! A decoder with quantized weights and adapters trains bitwise identically to one with the same weights dequantized, in
//! every placement.

use std::path::{Path, PathBuf};

use oarlock::model::{Decoder, HfConfig};
use oarlock::nn::{self, Forward, Init, Layer, Linear, LinearQuantized, Mask, Module};
use oarlock::shard::{Gather, ParamSlice, Placements, WeightSource};
use oarlock::weights::SafetensorsSource;
use oarlock::{Accelerator, AcceleratorConfig, DType, Result, ShardingConfig, Tensor, optim};
use oarlock_tensor::cpu::quantized::{Code, Format, Layout, dequantize};
use oarlock_tensor::cpu::{Cpu, Isa, Par};

use crate::ranks::on_ranks;

/// An update of low rank beside any layer, which keeps the names of its parameters.
#[derive(Module)]
struct Lora {
    #[module(name = "")]
    base: Box<dyn Layer>,
    lora_a: Linear,
    lora_b: Linear,
}

impl Forward<Tensor> for Lora {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        self.base.forward(x)?.add(&self.lora_b.forward(&self.lora_a.forward(x)?)?)
    }
}

/// Weights as a format keeps them, and adapters that do something from the start.
struct Rounded {
    full: SafetensorsSource,
    to: Option<Format>,
}

impl WeightSource for Rounded {
    fn read(&mut self, slice: &ParamSlice<'_>, out: &mut [f32]) -> Result<()> {
        let ParamSlice { name, shape, elements, .. } = slice;
        if name.contains("lora_") {
            let value = |i: usize| ((i * 37 + name.len() * 11) % 101) as f32 / 1010.0 - 0.05;
            elements.clone().zip(out).for_each(|(i, out)| *out = value(i));
            return Ok(());
        }
        let Some(format) = self.to.filter(|_| name.contains("_proj")) else {
            return self.full.read(slice, out);
        };
        let &[rows, cols] = shape.sizes() else { unreachable!("projections have two dims") };
        let mut whole = vec![0.0; rows * cols];
        self.full.read(&slice.whole(), &mut whole)?;
        let layout = Layout { rows, cols, format };
        let mut words = vec![0; layout.n_words()];
        let cpu = Cpu { isa: Isa::detect(), par: Par::solo() };
        layout.quantize(&cpu, &whole, &mut words);
        dequantize(&cpu, layout.weight(&words), 0..rows, 0..cols, &mut whole);
        out.copy_from_slice(&whole[elements.clone()]);
        Ok(())
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/train-llama")
}

/// Losses, and the trained weights in the end.
type Run = (Vec<f32>, Vec<(String, Vec<f32>)>);

fn train(accelerator: &Accelerator, format: Format, quantized: bool, dtype: DType) -> Result<Run> {
    let config = HfConfig::read(&folder())?;
    let mut model = Decoder::new(config.decoder().clone(), 16)?;
    let full = SafetensorsSource::open(&folder(), &config, &model)?;
    nn::freeze(&model);
    let adapted = |base: Box<dyn Layer>, linear: &Linear| -> nn::Result<Option<Box<dyn Layer>>> {
        let &[n_out, n_in] = linear.weight.shape().sizes() else { unreachable!("two dims") };
        let lora_a = Linear::new(n_in, 4)?.no_bias();
        let lora_b = Linear::new(4, n_out)?.no_bias().init(Init::Zeros);
        Ok(Some(Box::new(Lora { base, lora_a, lora_b })))
    };
    let source = Rounded { full, to: (!quantized).then_some(format) };
    let mut weights: Box<dyn WeightSource> = Box::new(source);
    if quantized {
        let mut quantized = Decoder::new(config.decoder().clone(), 16)?;
        let layouts = quantized.quantize(format, dtype)?;
        weights = Box::new(layouts.source(
            Rounded { full: SafetensorsSource::open(&folder(), &config, &model)?, to: None },
            accelerator.device(),
        ));
    }
    model.map_linears(|_, linear| {
        let base: Box<dyn Layer> = match quantized {
            true => Box::new(LinearQuantized::like(linear, format, dtype)?),
            false => Box::new(linear.clone()),
        };
        adapted(base, linear)
    })?;
    let optimizer = optim::adamw(&model).lr(1e-2);
    let (model, optimizer) = accelerator.prepare_with_weights((model, optimizer), weights)?;
    let ids: Vec<i32> = (0..32).map(|i| (i * 7 + 3) % 50).collect();
    let ids = Tensor::from_slice(&ids, [2, 16], accelerator.device())?;
    let mut losses = Vec::new();
    for _ in 0..4 {
        let logits = model.call(&ids, |model, ids| model.logits(ids, &Mask::Causal))?;
        let loss = nn::cross_entropy(&logits, &ids)?;
        accelerator.backward(&loss)?;
        optimizer.step()?;
        losses.push(loss.item()?);
    }
    let state = accelerator.get_state_dict(&model)?;
    let trained = state.into_iter().filter(|(name, _)| name.contains("lora_"));
    Ok((losses, trained.map(|(name, weight)| (name, weight.to_vec::<f32>().unwrap())).collect()))
}

#[test]
fn quantized_weights_train_as_the_same_weights_in_full() {
    let nf4 = Format::FourBit { code: Code::Nf4, nested: true };
    for (format, dtype) in
        [nf4, Format::Int8].into_iter().flat_map(|format| [(format, DType::F32), (format, DType::BF16)])
    {
        let run = |world, placements, quantized| {
            let shard = ShardingConfig {
                placements,
                gather: Gather::Copy,
                persistence_elems: 0,
                ..ShardingConfig::default()
            };
            let mixed_precision = (dtype != DType::F32).then_some(dtype);
            let config = AcceleratorConfig {
                shard,
                threads: Some(1),
                mixed_precision,
                ..AcceleratorConfig::default()
            };
            on_ranks(world, config, move |accelerator| train(accelerator, format, quantized, dtype))
                .remove(0)
                .unwrap()
        };
        let full = run(1, Placements::WHOLE, false);
        assert!(full.0[3] < full.0[0] && !full.1.is_empty());
        for (world, placements) in
            [(1, Placements::WHOLE), (2, Placements::WHOLE), (2, Placements::PARAMETERS)]
        {
            assert_eq!(
                run(world, placements, true),
                full,
                "{format}, {dtype}, {world} ranks, {placements:?}"
            );
        }
    }
}
