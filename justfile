# The tasks of CONTRIBUTING.md. `just` lists them; each line below can also be typed as it stands.

python := env("PYTHON", "python3")

# List the tasks.
default:
    @just --list

# Install this checkout, editable, with what tests and checks need.
setup:
    {{ python }} -m pip install -e '.[dev]'

# Run tests: all, on all cores; or a folder, a file, `-k NAME`.
test *ARGS='-n auto':
    {{ python }} -m pytest {{ ARGS }}

# Lint, format and check types.
lint:
    ruff check .
    ruff format .
    pyright

# Write the hook pages and llms.txt anew, then build the site.
docs:
    {{ python }} tests/packaging/refresh_docs.py
    zensical build --strict

# Print the benchmark table: all, or by name, as in `just bench startup step`.
bench *NAMES:
    {{ python }} tests/benchmarks {{ NAMES }}

# Break a room's code in small ways and list what its tests do not notice; needs mutmut==3.8.1.
mutants ROOM:
    {{ python }} tests/packaging/mutants.py {{ ROOM }}

# Refresh the pinned dependencies; `just pins --upgrade` moves to new releases.
pins *ARGS:
    {{ python }} tests/packaging/refresh_constraints.py {{ ARGS }}

# Make a release in dist/: wheel and sdist, built twice and equal, the README from the wheel, an SBOM, upgrade notes.
release *ARGS:
    {{ python }} tests/packaging/release.py {{ ARGS }}

# Do all that is checked before a merge.
ci:
    .ci/run
