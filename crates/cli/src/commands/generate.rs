//! `oarlock generate` and `oarlock chat`: text from a trained model, as it comes.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use oarlock::adapters::stop_ids;
use oarlock::data::{self, ChatTemplate, Tokenizer};
use oarlock::generate::engine::Limits;
use oarlock::generate::{Chat, GenerateOptions, Generator, Sampling, Stop};
use oarlock::model::hf::{generation_note, generation_stops};
use oarlock::{Error, Result, config};
use oarlock_config::json;
use oarlock_engine::report::terminal;

use super::model::LoadArgs;
use crate::console::{Outcome, eprint};

/// What both commands take.
#[derive(Args)]
struct ModelArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// The most tokens of an answer
    #[arg(long, default_value_t = 256)]
    max_new_tokens: usize,
    /// 0 always takes the likeliest token
    #[arg(long, default_value_t = 0.8, allow_negative_numbers = true)]
    temperature: f32,
    /// Only the likeliest tokens that together have this probability
    #[arg(long, default_value_t = 0.95)]
    top_p: f32,
    /// Only so many of the likeliest tokens; 0 for all
    #[arg(long, default_value_t = 0)]
    top_k: usize,
    /// Above 1 makes tokens of the text so far less likely
    #[arg(long, default_value_t = 1.0)]
    repetition_penalty: f32,
    /// The same seed gives the same text
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// The most tokens that are guessed at a time, where the text repeats itself; 0 guesses none. The text stays the same
    #[arg(long, value_name = "N", default_value_t = Limits::DEFAULT_SPECULATIVE_TOKENS)]
    speculative_tokens: usize,
}

#[derive(Args)]
pub(super) struct GenerateArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The text to continue
    #[arg(long)]
    prompt: String,
}

#[derive(Args)]
pub(super) struct ChatArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The system prompt of the conversation
    #[arg(long)]
    system: Option<String>,
    /// The template of the prompts, by the names of LLaMA-Factory; by default the model's own
    #[arg(long)]
    template: Option<String>,
    /// Whether a reasoning model is to think; by default its template decides
    #[arg(long)]
    enable_thinking: Option<bool>,
    /// A JSON file with a list of functions that the model may call
    #[arg(long)]
    tools: Option<PathBuf>,
}

/// A loaded model with its tokenizer.
fn load(args: &ModelArgs) -> Result<(Generator, Tokenizer, GenerateOptions)> {
    let (generator, tokenizer) = args.load.load()?;
    let mut stop_ids = generator.stop_ids(&tokenizer);
    let side = args.load.tokenizer_folder();
    stop_ids.extend(generation_stops(side)?);
    generation_note(side)?.iter().for_each(|note| eprint(&format!("{note}\n")));
    let options = GenerateOptions {
        sampling: Sampling {
            temperature: args.temperature,
            top_k: args.top_k,
            top_p: args.top_p,
            repetition_penalty: args.repetition_penalty,
            seed: args.seed,
            ..Sampling::GREEDY
        },
        max_new_tokens: args.max_new_tokens,
        stop_ids,
        speculative_tokens: args.speculative_tokens,
    };
    Ok((generator, tokenizer, options))
}

pub(super) fn generate(args: &GenerateArgs) -> Outcome {
    let (generator, tokenizer, options) = load(&args.model)?;
    let begin = Instant::now();
    // The prompt is shown when nothing was wrong with it, so that an error stands alone.
    let mut prompt = Some(args.prompt.as_str());
    let answer = generator.generate_text(&tokenizer, &args.prompt, &options, |text| {
        if let Some(prompt) = prompt.take()
            && print(prompt)?.is_break()
        {
            return Ok(ControlFlow::Break(()));
        }
        print(text)
    })?;
    let _: ControlFlow<()> = print(&format!("{}\n", prompt.unwrap_or_default()))?;
    let seconds = begin.elapsed().as_secs_f64();
    eprint(&format!("{} tokens, {:.0} tokens/s\n", answer.n_tokens, answer.n_tokens as f64 / seconds));
    if answer.stop == Stop::ModelLength {
        let n = generator.model().n_positions;
        eprint(&format!(
            "note: the text ends at the longest that the model takes, {n} positions (max_position_embeddings)\n"
        ));
    }
    Ok(())
}

pub(super) fn chat(args: &ChatArgs) -> Outcome {
    let (generator, tokenizer, mut options) = load(&args.model)?;
    let side = args.model.load.tokenizer_folder();
    let template = match &args.template {
        None => ChatTemplate::read(side)?,
        Some(name) => {
            let plain = config::ChatArgs::default();
            let enable_thinking = args.enable_thinking.map_or(plain.enable_thinking, Some);
            let named = config::ChatArgs { template: Some(name.clone()), enable_thinking, ..plain };
            let named = data::Chat::new(&tokenizer, side, &named, usize::MAX)?;
            options.stop_ids.extend(stop_ids(&named, &tokenizer, generator.config())?);
            named.prompts(&tokenizer, side)?
        }
    };
    let template = match args.enable_thinking {
        Some(on) => template.thinking(on),
        None => template,
    };
    let mut chat = Chat::new(&generator, &tokenizer, &template, options, args.system.as_deref());
    if let Some(path) = &args.tools {
        let text = oarlock_comm::read_text(path, oarlock_comm::MAX_RECORDS_BYTES)
            .map_err(Error::io("read", path))?;
        let tools = json::from_str(&text).map_err(|e| Error::Usage(format!("{}: {e}", path.display())))?;
        chat = chat.with_tools(tools)?;
    }
    chat.run(&mut std::io::stdin().lock(), &mut terminal::stdout())?;
    Ok(())
}

/// Writes as the text comes; says whether somebody still reads.
fn print(text: &str) -> Result<ControlFlow<()>> {
    let mut out = terminal::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        Err(e) => Err(Error::io("write to", "standard output")(e)),
    }
}
