//! What a request is answered when it goes wrong, in the form of OpenAI's API.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::backend::Refusal;

/// A wrong request, or one that the server cannot do now. Clients repeat those of status 408, 409, 429 and from 500 on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError(Box<Details>);

#[derive(Clone, Debug, PartialEq)]
struct Details {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<String>,
    message: String,
    retry_after_s: Option<u64>,
    /// Further fields of the object.
    further: Vec<(&'static str, Value)>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> ApiError {
        let message = message.into();
        let (code, param, retry_after_s, further) = (None, None, None, Vec::new());
        ApiError(Box::new(Details { status, kind, code, param, message, retry_after_s, further }))
    }

    fn with_code(mut self, code: Option<&'static str>) -> ApiError {
        self.0.code = code;
        self
    }

    fn with_param(mut self, param: Option<String>) -> ApiError {
        self.0.param = param;
        self
    }

    fn retry_after(mut self, seconds: u64) -> ApiError {
        self.0.retry_after_s = Some(seconds);
        self
    }

    /// The request is wrong, and will be when it is repeated.
    pub(crate) fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A field of the request is wrong.
    pub(crate) fn field(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError::invalid(message).with_param(Some(param.into()))
    }

    /// What a field asks for is nothing that this server does, and to leave it out would give another answer.
    pub(crate) fn unsupported(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError::field(param, message).with_code(Some("unsupported_parameter"))
    }

    /// The request is wrong in a way that HTTP has a status for.
    pub(crate) fn refused(
        status: StatusCode,
        code: Option<&'static str>,
        message: impl Into<String>,
    ) -> ApiError {
        let kind = match status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            _ => "invalid_request_error",
        };
        ApiError::new(status, kind, message).with_code(code)
    }

    /// There is no such model.
    pub(crate) fn no_model(name: &str) -> ApiError {
        let message = format!("The model `{}` does not exist.", excerpt(name));
        let error = ApiError::refused(StatusCode::NOT_FOUND, Some("model_not_found"), message);
        error.with_param(Some("model".to_owned()))
    }

    /// The server is ending, or has no time left for the request.
    pub(crate) fn unavailable(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message).retry_after(1)
    }

    /// The server is at fault.
    pub(crate) fn failed(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// `{"error": {"message", "type", "param", "code"}}`, as a body, and as a frame of a stream that has begun.
    pub(crate) fn body(&self) -> Value {
        let Details { kind, code, param, message, further, .. } = &*self.0;
        let mut object = json!({ "message": message, "type": kind, "param": param, "code": code });
        for (name, value) in further {
            object[*name] = value.clone();
        }
        json!({ "error": object })
    }

    /// The same in the form of Anthropic's API.
    pub(crate) fn anthropic_body(&self) -> Value {
        let kind = match self.0.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            400..500 => "invalid_request_error",
            _ => "api_error",
        };
        json!({ "type": "error", "error": { "type": kind, "message": self.0.message } })
    }

    /// What went wrong.
    pub(crate) fn message(&self) -> &str {
        &self.0.message
    }

    /// An answer with this body.
    pub(crate) fn response(&self, body: &Value) -> Response {
        let mut response = json_response(self.0.status, body);
        if let Some(seconds) = self.0.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.0.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> ApiError {
        let message = refusal.to_string();
        match refusal {
            Refusal::Loading => ApiError::unavailable("Loading model"),
            Refusal::QueueFull { retry_after_s } => {
                let message = "The queue is full; try again later.";
                let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
                error.with_code(Some("rate_limit_exceeded")).retry_after(retry_after_s.max(1))
            }
            Refusal::TooLong { n_prompt_tokens, context_length } => {
                let message = format!(
                    "This model's maximum context length is {context_length} tokens, and the prompt has \
                     {n_prompt_tokens}. Shorten it: the answer needs room as well."
                );
                let error = ApiError::field("messages", message);
                let mut error = error.with_code(Some("context_length_exceeded"));
                error.0.further =
                    vec![("n_prompt_tokens", json!(n_prompt_tokens)), ("n_ctx", json!(context_length))];
                error
            }
            Refusal::Invalid { param, .. } => ApiError::invalid(message).with_param(param),
            Refusal::Unsupported(_) => ApiError::invalid(message),
            Refusal::Failed(_) => ApiError::failed(message),
        }
    }
}

/// An answer with a JSON body.
pub(crate) fn json_response(status: StatusCode, body: &Value) -> Response {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.response(&self.body())
    }
}

/// The most characters of a text of others that a message repeats.
const EXCERPT: usize = 64;

/// The beginning of a text of others.
pub(crate) fn excerpt(text: &str) -> String {
    match text.char_indices().nth(EXCERPT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
