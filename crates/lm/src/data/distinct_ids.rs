//! Whether each token of a tokenizer has an id of its own, and the one that its file says.

/// Refuses two tokens with one id, which could not be distinguished in what a model writes, and an added token to which
/// the library gives another id than the file, `of_file`: where ids are missing before it, and where the vocabulary has
/// it.
pub(super) fn check<'a>(
    tokenizer: &tokenizers::Tokenizer,
    of_file: impl Iterator<Item = (&'a str, u32)>,
) -> Result<(), String> {
    let mut tokens: Vec<(u32, String)> =
        tokenizer.get_vocab(true).into_iter().map(|(token, id)| (id, token)).collect();
    tokens.sort_unstable();
    if let Some(pair) = tokens.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        let ((id, first), (_, second)) = (&pair[0], &pair[1]);
        return Err(format!(
            "its tokens {first:?} and {second:?} have one id, {id}; give each token an id of its own"
        ));
    }
    for (content, id) in of_file {
        let found = tokenizer.token_to_id(content).unwrap_or(id);
        if id != found {
            return Err(format!(
                "its added_tokens give {content:?} the id {id}, and it gets {found}, as in transformers: that is its id in the \
                 vocabulary, or the next one that is free; write {found}, or repair the vocabulary"
            ));
        }
    }
    Ok(())
}
