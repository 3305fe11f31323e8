"""Names that look like secrets."""

from __future__ import annotations

import pytest
from moryflow_sdk.support.protected_files import sensitive

SECRETS = [
    ".env", "./.env", ".env/", ".ENV", ".env ", ".env.", ".env.local", ".Env.Production", "config/prod.env", ".envrc", ".env~",
    ".env::$DATA", "a/.env.bak", "keys/server.pem", "server.PEM::$DATA", "private.key", "private.key.bak", ".ssh/config",
    ".ssh/id_rsa", "id_ed25519", "id_rsa.pub", "vault:/.npmrc", "fs:/home/u/.netrc", ".pypirc", ".aws/credentials",
    "credentials.json", ".git-credentials", "x/.\u212aEY", "a.\u212aey", ".e\u200bnv", "\uff0eenv", "deploy.p12",
    "token.txt", "passwords.txt", "prod.tfvars", "terraform.tfstate", "terraform.tfstate.backup", ".dev.vars", "kubeconfig",
    "auth.json", ".git/config", "sub/.GIT/config", ".envlocal", "src/process.env.ts", ".ssh./config", ".Config/GH/hosts.yml",
    "db-credentials.yaml", "k8s/secret.yml", "my_passwords.txt", "cookies.txt", ".bash_history", "wp-config.php",
    ".irb_history", "my-service-account.json", "deploy_key", ".env.d/x", ".secrets/x", ".huggingface/token",
    "private-key.asc", "ngrok.yml",
    ".config/anthropic/x", ".config/configstore/x.json", ".jwt-secret", ".claude.json", "access_token", ".viminfo",
    "x/.mozilla/a",
]  # fmt: skip
PLAIN = [
    "notes.md", "my.environment.md", "public.keynote.md", "environment.py", "keys/readme.md", "src/env.py", "monkey", "key",
    "credentials.py", "envelope.txt", ".environment", "token.py", "src/auth.ts", "tokens.json",
    "tokenizer.json", "private_key.rs", "password_reset_email.txt", "git/config", "docs/secrets.md", ".config/x",
    "package.json", "", "/", "a.pem.md", "secrets.py", "..hidden.md",
]  # fmt: skip


@pytest.mark.parametrize("path", SECRETS)
def test_a_secret_is_known_by_its_name(path: str) -> None:
    """Case, trailing dots, spaces, slashes and streams hide nothing (S0.33, D3, R10)."""
    assert sensitive(path)


@pytest.mark.parametrize("path", PLAIN)
def test_an_ordinary_name_is_not_sensitive(path: str) -> None:
    """A name that only contains the letters is left alone (S0.39)."""
    assert not sensitive(path)
