# The whole of CI.
check:
    ./tests/run

# Renews the generated files.
docs:
    BLESS=1 cargo test --test generated
    python3 grafana/build.py

# Renews generated files and goldens; read the difference like code.
bless:
    BLESS=1 cargo test
