//! `oarlock eval`: how many questions of MMLU, C-Eval or CMMLU a model answers rightly, or how well it foresees a text.

use std::fs;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, ValueEnum};
use oarlock::config::ChatArgs;
use oarlock::data::{
    CHOICES, Chat, ChatTemplate, Encoder, Example, Labels, Language, Question, Subject, Tokenizer, subjects,
};
use oarlock::{Error, Result};
use serde_json::{Map, Value};

use super::model::LoadArgs;
use crate::console::{Outcome, eprint, print};

#[derive(Args)]
pub(super) struct EvalArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// The questions: mmlu_test, ceval_validation, cmmlu_test, or another folder and part of it
    #[arg(long, required_unless_present = "perplexity")]
    task: Option<String>,
    /// Instead of questions a text: the perplexity of this file, in pieces of --ctx-size tokens, of each the second half, as
    /// llama-perplexity measures it
    #[arg(long, value_name = "FILE",
          conflicts_with_all = ["task", "task_dir", "lang", "n_shot", "template", "save_dir"])]
    perplexity: Option<PathBuf>,
    /// The tokens of a piece of the text; by default 512
    #[arg(long)]
    ctx_size: Option<usize>,
    /// The most pieces; by default all
    #[arg(long)]
    chunks: Option<NonZeroUsize>,
    /// The folder of all tasks
    #[arg(long, default_value = "evaluation", alias = "task_dir")]
    task_dir: PathBuf,
    /// The language of the words around the questions
    #[arg(long, value_enum, default_value = "en")]
    lang: Lang,
    /// Questions that are shown with their answers first
    #[arg(long, default_value_t = 5, alias = "n_shot")]
    n_shot: usize,
    /// The template of the prompts; by default the model's own, or `fewshot` where it has none
    #[arg(long)]
    template: Option<String>,
    /// A folder for results.json and results.log, which does not exist yet
    #[arg(long, alias = "save_dir")]
    save_dir: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Lang {
    En,
    Zh,
}

/// The groups of subjects, in the order of the report, with the one that all are in.
const CATEGORIES: [&str; 5] = ["Average", "STEM", "Social Sciences", "Humanities", "Other"];

/// The longest text.
const MAX_TEXT_BYTES: u64 = 1 << 30;

/// The longest prompt in tokens; the model may take fewer.
const MAX_PROMPT: usize = 1 << 20;

pub(super) fn run(args: &EvalArgs) -> Outcome {
    if let Some(file) = &args.perplexity {
        return perplexity(args, file);
    }
    // clap asks for nothing that conflicts with what is there.
    if args.ctx_size.is_some() || args.chunks.is_some() {
        return Err(Error::Usage("--ctx-size and --chunks go with --perplexity".to_owned()).into());
    }
    if let Some(dir) = args.save_dir.as_ref().filter(|dir| dir.exists()) {
        return Err(
            Error::Usage(format!("`save_dir` {} already exists, use another one", dir.display())).into()
        );
    }
    // clap has required one of both.
    let subjects = subjects(&args.task_dir, args.task.as_deref().unwrap_or_default())?;
    if let Some(subject) = subjects.iter().find(|s| !CATEGORIES[1..].contains(&s.category.as_str())) {
        return Err(Error::Usage(format!(
            "mapping.json: the category of {} is `{}`; expected one of {}",
            subject.id,
            subject.category,
            CATEGORIES[1..].join(", ")
        ))
        .into());
    }
    let (generator, tokenizer) = args.load.load()?;
    let side = args.load.tokenizer_folder();
    let template = match &args.template {
        None if !ChatTemplate::is_in(side)? => Some("fewshot".to_owned()),
        template => template.clone(),
    };
    let chat_args = ChatArgs { template, mask_history: true, ..ChatArgs::default() };
    let chat = Chat::new(&tokenizer, side, &chat_args, MAX_PROMPT)?;
    let letters = letters(&tokenizer)?;
    let begin = Instant::now();
    let mut scores = [Score::default(); CATEGORIES.len()];
    let mut results = Map::new();
    for subject in &subjects {
        let prompt = |question: &Question| prompt(args, &chat, &tokenizer, subject, question);
        let prompts: Vec<Vec<u32>> = subject.questions.iter().map(prompt).collect::<Result<_>>()?;
        let chosen =
            generator.choose(&prompts, &letters).map_err(|e| Error::Usage(format!("{}: {e}", subject.id)))?;
        let mut own = Score::default();
        for (question, &chosen) in subject.questions.iter().zip(&chosen) {
            own.count(question, CHOICES[chosen]);
        }
        for (category, score) in CATEGORIES.iter().zip(&mut scores) {
            if *category == CATEGORIES[0] || *category == subject.category {
                score.add(own);
            }
        }
        eprint(&format!("{}: {own}, {} questions\n", subject.name, subject.questions.len()));
        let answers = chosen.iter().enumerate().map(|(at, &chosen)| (at.to_string(), CHOICES[chosen].into()));
        results.insert(subject.id.clone(), Value::Object(answers.collect()));
    }
    let lines: Vec<String> = CATEGORIES
        .iter()
        .zip(&scores)
        .filter(|(_, score)| score.n_asked > 0)
        .map(|(category, score)| format!("{category:>15}: {score}"))
        .collect();
    let report = match lines.is_empty() {
        true => "the files keep the right answers to themselves".to_owned(),
        false => lines.join("\n"),
    };
    print(&format!("{report}\n"))?;
    eprint(&format!("{:.1} s, {}\n", begin.elapsed().as_secs_f64(), chat.describe()));
    if let Some(dir) = &args.save_dir {
        fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
        let write = |name: &str, text: String| {
            let path = dir.join(name);
            oarlock_files::replace(&path, text).map_err(Error::io("write", &path))
        };
        write("results.json", format!("{:#}\n", Value::Object(results)))?;
        write("results.log", report)?;
    }
    Ok(())
}

/// Says how well the model foresees a text.
fn perplexity(args: &EvalArgs, file: &Path) -> Outcome {
    let text = oarlock_comm::read_text(file, MAX_TEXT_BYTES).map_err(Error::io("read", file))?;
    let (generator, tokenizer) = args.load.load()?;
    let n_ctx = args.ctx_size.unwrap_or(512);
    let begins = tokenizer.begins_texts()?;
    let mut ids: Vec<u32> = begins.into_iter().collect();
    ids.extend(tokenizer.encode(&text)?);
    let most = args.chunks.map_or(usize::MAX, NonZeroUsize::get);
    let begin = Instant::now();
    let found = generator.perplexity(&ids, n_ctx, begins, &mut |all, so_far| {
        eprint(&format!("[{}/{}] {:.4}\n", so_far.n_chunks, all.min(most), so_far.value()));
        if so_far.n_chunks < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    print(&format!("PPL = {:.4} +/- {:.5}\n", found.value(), found.standard_error()))?;
    eprint(&format!(
        "{:.1} s, {} tokens of {} foreseen in {} pieces of {}, {}\n",
        begin.elapsed().as_secs_f64(),
        found.n_tokens,
        ids.len(),
        found.n_chunks,
        n_ctx,
        if begins.is_some() { "each with the first token of a text" } else { "without a first token" },
    ));
    Ok(())
}

/// The tokens of a question up to its answer.
fn prompt(
    args: &EvalArgs,
    chat: &Chat,
    tokenizer: &Tokenizer,
    subject: &Subject,
    question: &Question,
) -> Result<Vec<u32>> {
    let language = match args.lang {
        Lang::En => Language::English,
        Lang::Zh => Language::Chinese,
    };
    let conversation = subject.conversation(question, args.n_shot, language);
    let mut encoded = Encoder::sft(tokenizer, chat).encode(&Example::Conversation(conversation))?;
    if let Labels::Spans(spans) = &encoded.labels
        && let Some(answer) = spans.last()
    {
        encoded.ids.truncate(answer.start as usize);
    }
    Ok(encoded.ids)
}

/// The tokens of the letters.
fn letters(tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    let of = |letter: &str| {
        let last = tokenizer.encode(letter)?.last().copied();
        last.ok_or_else(|| Error::Usage(format!("the tokenizer has no token for {letter}")))
    };
    CHOICES.iter().map(|letter| of(letter)).collect()
}

/// How many of the questions whose answers are known were answered rightly.
#[derive(Clone, Copy, Default)]
struct Score {
    n_right: usize,
    n_asked: usize,
}

impl Score {
    fn count(&mut self, question: &Question, chosen: &str) {
        self.n_asked += usize::from(!question.answer.is_empty());
        self.n_right += usize::from(question.answer == chosen);
    }

    fn add(&mut self, other: Score) {
        self.n_right += other.n_right;
        self.n_asked += other.n_asked;
    }
}

impl std::fmt::Display for Score {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.n_asked {
            0 => f.write_str("-"),
            asked => write!(f, "{:.2}", 100.0 * self.n_right as f64 / asked as f64),
        }
    }
}
