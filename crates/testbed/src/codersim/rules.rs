//! Validation of names, addresses and passwords, with the messages of coderd.

use std::collections::BTreeSet;

use super::message::Reply;

/// A failed validation: its name and the value.
pub(super) type Unfit<'a> = (&'static str, &'a str);

/// Refuses a body with all fields that fail.
pub(super) fn fields(found: &[(&str, Option<Unfit<'_>>)]) -> Result<(), Reply> {
    let unfit: Vec<_> = found
        .iter()
        .filter_map(|(field, unfit)| {
            let (rule, value) = (*unfit)?;
            Some((*field, format!("Validation failed for tag {rule:?} with value: \"{value}\"")))
        })
        .collect();
    if unfit.is_empty() {
        return Ok(());
    }
    Err(unfit.iter().fold(Reply::error(400, "Validation failed."), |reply, (field, detail)| {
        reply.validation(field, detail)
    }))
}

/// Must not be empty.
pub(super) fn required(value: &str) -> Option<Unfit<'_>> {
    value.is_empty().then_some(("required", value))
}

/// 1 to 32 letters and digits, in groups separated by single hyphens.
pub(super) fn name(name: &str) -> Option<Unfit<'_>> {
    let group = |group: &str| !group.is_empty() && group.chars().all(|c| c.is_ascii_alphanumeric());
    let fits =
        (1..=32).contains(&name.len()) && name.split('-').all(group) && !matches!(name, "new" | "create");
    (!fits).then_some(("username", name))
}

/// Must have text on both sides of an at sign.
pub(super) fn email(email: &str) -> Option<Unfit<'_>> {
    let fits = email.split_once('@').is_some_and(|(local, domain)| !local.is_empty() && !domain.is_empty());
    (!fits).then_some(("email", email))
}

/// At least 52 bits by a rough estimate, and at most 64 characters.
pub(super) fn check_password(password: &str) -> Result<(), Reply> {
    let has = |is: fn(&char) -> bool| password.chars().any(|c| is(&c));
    let size = |is, size| if has(is) { size } else { 0.0 };
    let alphabet: f64 = size(char::is_ascii_lowercase, 26.0)
        + size(char::is_ascii_uppercase, 26.0)
        + size(char::is_ascii_digit, 10.0)
        + size(|c| !c.is_ascii_alphanumeric(), 20.0);
    let letters = u32::try_from(password.chars().count()).unwrap_or(u32::MAX);
    let different = u32::try_from(password.chars().collect::<BTreeSet<_>>().len()).unwrap_or(u32::MAX);
    // A repeated character adds nothing after the second time.
    let bits = f64::from(letters.min(different.saturating_mul(2))) * alphabet.max(1.0).log2();
    if letters <= 64 && bits >= 52.0 {
        return Ok(());
    }
    // The estimator of coderd has three sets of special characters, and most passwords do not use all of them.
    let hints: Vec<_> = [
        ("including more special characters", false),
        ("using lowercase letters", has(char::is_ascii_lowercase)),
        ("using uppercase letters", has(char::is_ascii_uppercase)),
        ("using numbers", has(char::is_ascii_digit)),
    ]
    .into_iter()
    .filter_map(|(hint, there)| (!there).then_some(hint))
    .collect();
    let detail = format!("insecure password, try {} or using a longer password", hints.join(", "));
    Err(Reply::error(400, "Password is invalid").validation("password", &detail))
}
