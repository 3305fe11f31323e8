"""Take secrets out of text that people and logs see."""

from __future__ import annotations

import re

_PATTERNS = (
    re.compile(
        r"\b(sk|pk|rk|ghp|gho|ghs|github_pat|glpat|xox[abprs]|AKIA|ASIA|AIza|hf|gsk|tvly)[-_]?[A-Za-z0-9][A-Za-z0-9_\-]{5,}"
    ),
    re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/\-]{6,}=*"),
    re.compile(r"(?i)\b(api[_-]?key|token|secret|password|passwd|authorization)(\"?\s*[:=]\s*\"?)[^\s\"',;&]{4,}"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)"),
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
)
MASK = "[redacted]"


def redact(text: str, *secrets: str) -> str:
    """Return `text` without the given `secrets` and without what looks like a key, a token or a password."""
    for secret in secrets:
        if len(secret) >= 4:
            text = text.replace(secret, MASK)
    for pattern in _PATTERNS:
        text = pattern.sub(_mask, text)
    return text


def _mask(match: re.Match[str]) -> str:
    groups = match.groups()
    if len(groups) == 2 and groups[1]:
        return f"{groups[0]}{groups[1]}{MASK}"
    return MASK
