//! `oarlock serve`: what it answers is what the model says, alone and among others, and a signal ends it in good order.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::common::{Running, Site, run, start, until};

/// A server that runs, and where.
struct Server {
    running: Running,
    address: SocketAddr,
}

impl Server {
    fn start(site: &Site, words: &[&str]) -> Server {
        Server::of(start(site.oarlock(&[&["serve", "--port", "0"], words].concat())))
    }

    fn of(running: Running) -> Server {
        let address = until("the address of the server", || {
            let said = running.stdout();
            let (_, rest) = said.split_once("http://")?;
            rest.split_once("/v1").and_then(|(address, _)| address.parse().ok())
        });
        Server { running, address }
    }

    /// The status and the body of an answer.
    fn ask(&self, path: &str, headers: &str, body: &Value) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let body = body.to_string();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n{headers}\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        let (head, body) = said.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// The answer to a request that must be good.
    fn json(&self, path: &str, body: &Value) -> Value {
        let (status, said) = self.ask(path, "", body);
        assert_eq!(status, 200, "{said}");
        serde_json::from_str(&said).unwrap()
    }

    fn end(self) -> Option<i32> {
        let pid = Pid::from_raw(self.running.pid() as i32).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        self.running.wait().code
    }
}

/// A site whose model takes texts of a thousand tokens.
fn roomy_site() -> Site {
    let site = Site::new();
    let mut config: Value = serde_json::from_slice(&site.read("model/config.json")).unwrap();
    config["max_position_embeddings"] = 1024.into();
    site.write("model/config.json", &config.to_string());
    site
}

fn completion(more: Value) -> Value {
    let mut body = json!({"prompt": "the", "max_tokens": 12, "temperature": 0});
    more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
    body
}

#[test]
fn a_server_says_what_the_model_says() {
    let site = roomy_site();
    site.train("lora", &["finetuning_type=lora", "learning_rate=1e-2", "max_steps=3"]);
    let server = Server::start(&site, &["model", "--adapter", "tuned=lora"]);
    let generated = |words: &[&str]| {
        let words = [&["generate", "--prompt", "the", "--max-new-tokens", "12", "--temperature", "0"], words]
            .concat();
        let said = run(site.oarlock(&words));
        assert_eq!(said.code, Some(0), "{said:?}");
        said.stdout.strip_prefix("the").unwrap().strip_suffix('\n').unwrap().to_owned()
    };
    for (name, words) in
        [("model", vec!["--model", "model"]), ("tuned", vec!["--model", "model", "--adapter", "lora"])]
    {
        let said = server.json("/v1/completions", &completion(json!({"model": name})));
        assert_eq!(said["choices"][0]["text"], generated(&words), "{said}");
        assert_eq!(said["usage"]["completion_tokens"], 12);
    }
    // Tokens and back, and how likely they were.
    let ids = server.json("/tokenize", &json!({"content": "the cat"}))["tokens"].clone();
    assert_eq!(server.json("/detokenize", &json!({"tokens": ids}))["content"], "the cat");
    let said = server.json("/v1/completions", &completion(json!({"model": "model", "logprobs": 2})));
    let logprobs = said["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap().clone();
    assert!(logprobs.len() == 12 && logprobs.iter().all(|x| x.as_f64().unwrap() < 0.0), "{said}");

    let text = "the cat ".repeat(40);
    // Of a prompt as well, whether it was read before or not: those of its answer are the same with it.
    let echoed = || {
        let body = json!({"model": "model", "prompt": format!("the cat {text}"), "logprobs": 1, "max_tokens": 2, "echo": true});
        let choice = &server.json("/v1/completions", &completion(body))["choices"][0];
        (choice["text"].clone(), choice["logprobs"]["token_logprobs"].as_array().unwrap().clone())
    };
    let (text, of_all) = echoed();
    assert!(text.as_str().unwrap().starts_with("the cat the cat"), "{text}");
    assert!(
        of_all.len() > 40 && of_all[0].is_null() && of_all[1..].iter().all(|x| x.as_f64().unwrap() < 0.0)
    );
    assert_eq!(echoed(), (text, of_all));

    // The same seed gives the same answer, alone and among others, whoever they are for.
    let drawn = |seed: u64, model: &str| {
        let body = json!({"model": model, "temperature": 1.0, "seed": seed, "logprobs": 1, "max_tokens": 20});
        let said = server.json("/v1/completions", &completion(body));
        said["choices"][0].clone()
    };
    let alone = ["model", "tuned"].map(|model| (0..4).map(|seed| drawn(seed, model)).collect::<Vec<Value>>());
    assert!(alone[0][0] != alone[0][1] && alone[0] != alone[1]);
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..24)
            .map(|i| scope.spawn(move || (i, drawn(i % 4, ["model", "tuned"][(i / 4 % 2) as usize]))))
            .collect::<Vec<_>>();
        for (i, said) in asked.into_iter().map(|one| one.join().unwrap()) {
            assert_eq!(said, alone[(i / 4 % 2) as usize][(i % 4) as usize], "{i}");
        }
    });
    // What is wrong is said, and the server goes on.
    let (status, said) = server.ask("/v1/completions", "", &completion(json!({"model": "other"})));
    assert!(status == 404 && said.contains("model_not_found"), "{status} {said}");
    let long = "the ".repeat(9000);
    let (status, said) =
        server.ask("/v1/completions", "", &completion(json!({"model": "model", "prompt": long})));
    assert!(status == 400 && said.contains("context_length_exceeded"), "{status} {said}");
    let (status, said) =
        server.ask("/v1/completions", "", &completion(json!({"model": "model", "temperature": -1})));
    assert!(status == 400 && said.contains("temperature"), "{status} {said}");
    // A text that the tokenizer gives up on is no fault of the server, and nothing of its machine is told.
    let (status, said) = server.ask("/tokenize", "", &json!({"content": "\n".repeat(1_200_000)}));
    let is_plain = said.contains("has no tokens for this text") && !said.contains("tokenizer.json");
    assert!(status == 400 && is_plain, "{status} {said}");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn answers_are_held_to_their_form() {
    let site = roomy_site();
    let server = Server::start(&site, &["model", "--template", "default"]);
    let chat = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "the"}], "max_tokens": 200, "temperature": 1, "seed": 3});
        more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
        server.ask("/v1/chat/completions", "", &body)
    };
    let choice = |more: Value| {
        let (status, said) = chat(more);
        assert_eq!(status, 200, "{said}");
        serde_json::from_str::<Value>(&said).unwrap()["choices"][0].clone()
    };
    let fields =
        json!({"color": {"enum": ["red", "blue"]}, "n": {"type": "integer", "minimum": 0, "maximum": 9}});
    let schema = json!({"type": "object", "properties": fields, "required": ["color", "n"], "additionalProperties": false});
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema}});
    let held = |seed: u64| {
        let choice = choice(json!({"response_format": format, "seed": seed, "logprobs": true}));
        let value: Value = serde_json::from_str(choice["message"]["content"].as_str().unwrap()).unwrap();
        assert!(value["color"].is_string() && value["n"].as_u64().unwrap() < 10, "{choice}");
        assert_eq!(choice["finish_reason"], "stop");
        choice
    };
    let alone: Vec<Value> = (0..3).map(held).collect();
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..12).map(|i| scope.spawn(move || held(i % 3))).collect();
        for (i, said) in asked.into_iter().enumerate() {
            assert_eq!(said.join().unwrap(), alone[i % 3]);
        }
    });
    let said = choice(json!({"guided_choice": ["yes/no", "(maybe)"]}))["message"]["content"].clone();
    assert!(said == "yes/no" || said == "(maybe)", "{said}");
    assert_eq!(choice(json!({"guided_regex": "a{3}b"}))["message"]["content"], "aaab");
    // Cut off, it is what has come so far.
    assert_eq!(choice(json!({"response_format": format, "max_tokens": 2}))["finish_reason"], "length");

    // What no answer can be is the client's mistake, with the name of the field.
    let never =
        json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": {"enum": []}}});
    let (status, said) = chat(json!({"response_format": never}));
    assert!(status == 400 && said.contains("\"param\":\"response_format\""), "{status} {said}");
    let (status, said) = chat(json!({"guided_regex": "("}));
    assert!(status == 400 && said.contains("no answer can be held to this form"), "{status} {said}");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn calls_are_written_as_the_template_writes_them() {
    let site = roomy_site();
    // The calls of the first have no marks around them.
    for marks in ["", "<tool_call></tool_call>"] {
        let messages = "{% for message in messages %}{{ message.content }}{% endfor %}";
        site.write("model/chat_template.jinja", &format!("{{% if tools %}}{marks}{{% endif %}}{messages}"));
        let server = Server::start(&site, &["model"]);
        let parameters = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["n"], "additionalProperties": false});
        let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": parameters, "strict": true}});
        let named = json!({"type": "function", "function": {"name": "draw"}});
        for (tool_choice, is_named) in [(json!("required"), false), (named, true)] {
            let body = json!({"messages": [{"role": "user", "content": "the"}], "max_tokens": 300, "seed": 5,
                "tools": [tool("paint"), tool("draw")], "tool_choice": tool_choice, "parallel_tool_calls": false});
            let said = server.json("/v1/chat/completions", &body)["choices"][0].clone();
            let calls = said["message"]["tool_calls"].as_array().unwrap_or_else(|| panic!("{said}"));
            assert_eq!((calls.len(), &said["finish_reason"]), (1, &json!("tool_calls")));
            let function = &calls[0]["function"];
            assert!(function["name"] == "draw" || (!is_named && function["name"] == "paint"), "{said}");
            let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
            assert!(arguments["n"].as_u64().unwrap() < 10, "{said}");
        }
        // Where the model decides, it may say anything.
        let body = json!({"messages": [{"role": "user", "content": "the"}], "max_tokens": 5, "ignore_eos": true,
            "tools": [tool("draw")]});
        assert_eq!(server.json("/v1/chat/completions", &body)["usage"]["completion_tokens"], 5);
        assert_eq!(server.end(), Some(0));
    }
}

/// A request whose body is not complete yet: the server waits for it when it ends.
fn begun(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{";
    stream.write_all(head.as_bytes()).unwrap();
    // Behind it comes another client, so that the server has seen this one.
    server.json("/v1/completions", &completion(json!({})));
    stream
}

#[test]
fn one_signal_lets_the_server_finish_and_two_do_not() {
    let site = Site::new();
    let signal = |server: &Server| {
        kill_process(Pid::from_raw(server.running.pid() as i32).unwrap(), Signal::TERM).unwrap();
        // Longer than it takes to see a signal.
        std::thread::sleep(std::time::Duration::from_millis(300));
    };
    let server = Server::start(&site, &["model"]);
    let mut stream = begun(&server);
    signal(&server);
    stream.write_all(b"}").unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    // Its answer tells that the prompt is missing.
    assert!(said.starts_with("HTTP/1.1 400") && said.contains("`prompt` is required"), "{said}");
    assert_eq!(server.running.wait().code, Some(0));

    let server = Server::start(&site, &["model"]);
    let _stream = begun(&server);
    signal(&server);
    assert_eq!(server.end(), Some(128 + Signal::TERM.as_raw()));
}

#[test]
fn keys_and_names_are_asked_for() {
    let site = Site::new();
    site.write("keys", "one-key\n\nother-key\n");
    let server = Server::start(&site, &["model", "--name", "mine", "--api-key-file", "keys"]);
    let body = completion(json!({"model": "mine"}));
    assert_eq!(server.ask("/v1/completions", "", &body).0, 401);
    assert_eq!(server.ask("/v1/completions", "Authorization: Bearer wrong\r\n", &body).0, 401);
    assert_eq!(server.ask("/v1/completions", "Authorization: Bearer other-key\r\n", &body).0, 200);
    // A port that is taken.
    let port = server.address.port().to_string();
    let said = run(site.oarlock(&["serve", "model", "--port", &port]));
    assert!(said.code != Some(0) && said.stderr.contains("name another --port or --host"), "{said:?}");
    assert_eq!(server.end(), Some(0));

    site.write("empty", "\n");
    site.write("spaces", "a key\n");
    for (words, message) in [
        (vec!["model", "--api-key-file", "empty"], "it holds no key"),
        (vec!["model", "--api-key-file", "spaces"], "without spaces"),
        (vec!["nothing"], "nothing"),
        (vec!["model", "--adapter", "lora"], "expected NAME=PATH"),
        (vec!["model", "--adapter", "model=lora"], "two models have the name"),
        (vec!["model", "--temperature", "-1"], "temperature -1 is from 0 to 2"),
    ] {
        let said = run(site.oarlock(&[&["serve", "--port", "0"], &words[..]].concat()));
        assert!(said.code != Some(0) && said.message().contains(message), "{words:?}: {said:?}");
    }
}

/// The server that MiniMind's users start: it answers to any name, and streams where a request does not say.
#[test]
fn the_server_of_minimind_streams() {
    let site = Site::new();
    site.write("model/chat_template.jinja", "{% for message in messages %}{{ message.content }}{% endfor %}");
    let mut command = site.oarlock(&["serve_openai_api", "--load_from", "model", "--max_seq_len", "64"]);
    command.env("API_PORT", "0");
    let server = Server::of(start(command));
    let said = format!("{}{}", server.running.stdout(), server.running.stderr());
    assert!(said.contains("note: this is `oarlock serve model") && said.contains("max_seq_len"), "{said}");
    let body = |more: &str| {
        format!(
            "{{\"model\": \"x\", \"max_tokens\": 3, \"ignore_eos\": true, \"messages\": [{{\"role\": \"user\", \"content\": \"the\"}}]{more}}}"
        )
    };
    let ask = |more: &str| {
        let (status, said) =
            server.ask("/v1/chat/completions", "", &serde_json::from_str(&body(more)).unwrap());
        assert_eq!(status, 200, "{said}");
        said
    };
    assert!(ask("").contains("data: [DONE]"));
    assert!(ask(", \"stream\": false").contains("\"completion_tokens\":3"));
    assert_eq!(server.end(), Some(0));
}

/// The server that LLaMA-Factory's users start, with its variables.
#[test]
fn the_api_of_llamafactory_answers_to_any_name() {
    let site = Site::new();
    let mut command =
        site.oarlock(&["llamafactory-cli", "api", "model_name_or_path=model", "template=default"]);
    command.env("API_PORT", "0").env("API_KEY", "secret-key");
    let server = Server::of(start(command));
    let said = format!("{}{}", server.running.stdout(), server.running.stderr());
    assert!(
        said.contains("note: this is `oarlock serve --model model") && !said.contains("secret-key"),
        "{said}"
    );
    let body = json!({"model": "whatever", "messages": [{"role": "user", "content": "the"}], "max_tokens": 3, "ignore_eos": true});
    assert_eq!(server.ask("/v1/chat/completions", "", &body).0, 401);
    let (status, said) = server.ask("/v1/chat/completions", "Authorization: Bearer secret-key\r\n", &body);
    assert!(status == 200 && said.contains("\"completion_tokens\":3"), "{status} {said}");
    assert_eq!(server.end(), Some(0));
}
