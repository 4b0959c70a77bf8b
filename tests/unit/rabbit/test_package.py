"""The package is independent: no Redis, no database, and without a key store no PyNaCl."""

import subprocess
import sys


def run(code: str, *modules: str) -> subprocess.CompletedProcess[str]:
    # None in sys.modules makes Python refuse the import of the module.
    program = f"import sys\nsys.modules.update(dict.fromkeys({modules!r}))\n{code}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_the_package_imports_without_the_dependencies_of_others() -> None:
    done = run(
        "import conquiet.rabbit; from conquiet import RabbitConsumer; print(RabbitConsumer.__name__)",
        "redis", "sqlalchemy", "pymysql", "nacl", "typer", "rich", "pydantic",
    )  # fmt: skip

    assert done.stdout == "RabbitConsumer\n", done.stderr


def test_a_missing_client_library_says_what_to_install() -> None:
    code = (
        "from conquiet.errors import MissingExtraError\n"
        "try:\n    import conquiet.rabbit\nexcept MissingExtraError as error:\n    print(error)\n"
    )

    assert "pip install 'conquiet[rabbit]'" in run(code, "pika").stdout


def test_a_key_store_without_pynacl_says_what_to_install() -> None:
    code = (
        "from conquiet.errors import MissingExtraError\nfrom conquiet.rabbit.proca.decrypt import Decryptor\n"
        "try:\n    Decryptor(None)\nexcept MissingExtraError as error:\n    print(error)\n"
    )

    assert "conquiet[rabbit]" in run(code, "nacl").stdout
