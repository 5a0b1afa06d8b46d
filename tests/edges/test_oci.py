"""`OCIModel`: where it goes, whom it says it is, and a signature that an independent signer accepts."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentloop.exceptions import UserError, UserValueError
from agentloop.items import UserMessage
from agentloop.model_events import ModelRequest, ResponseDone
from agentloop.models import OCIModel
from agentloop.models.oci import RequestSigner, read_profile
from agentloop.models.registry import resolve_model

REQUEST = ModelRequest(system=None, items=(UserMessage("Hi, für dich"),))
CHAT = b'data: {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
RESPONSE = {"id": "r", "status": "completed", "output": []}
RESPONSES = b'data: {"type": "response.completed", "response": %s}\n\n' % json.dumps(RESPONSE).encode()
TENANCY = "ocid1.tenancy.oc1..t"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OCI_REGION", "OCI_COMPARTMENT_ID", "OCI_GENAI_API_KEY", "OCI_CLI_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OCI_CONFIG_FILE", str(tmp_path / "config"))


@pytest.fixture(scope="module")
def key() -> Any:
    """A key of 2048 bits."""
    rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def pem(key: Any, pass_phrase: str | None = None) -> bytes:
    from cryptography.hazmat.primitives import serialization as s

    sealed = s.BestAvailableEncryption(pass_phrase.encode()) if pass_phrase else s.NoEncryption()
    data: bytes = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, sealed)
    return data


def write_profile(tmp_path: Path, key_data: bytes, **changes: str | None) -> Path:
    """Write a configuration with the profile DEFAULT, and its key."""
    (tmp_path / "key.pem").write_bytes(key_data)
    fields: dict[str, str | None] = {
        "user": "ocid1.user.oc1..u",
        "fingerprint": "aa:bb",
        "tenancy": TENANCY,
        "region": "us-chicago-1",
        "key_file": str(tmp_path / "key.pem"),
    }
    lines = [f"{name}={value}" for name, value in (fields | changes).items() if value is not None]
    (tmp_path / "config").write_text("\n".join(["[DEFAULT]", *lines]))
    return tmp_path / "config"


async def send(model: OCIModel) -> ResponseDone:
    async with model.stream(REQUEST) as events:
        done = [event async for event in events][-1]
    assert isinstance(done, ResponseDone)
    return done


def client(seen: list[httpx.Request]) -> httpx.AsyncClient:
    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        headers = {"content-type": "text/event-stream", "opc-request-id": "opc-1"}
        return httpx.Response(
            200, headers=headers, content=CHAT if request.url.path.endswith("completions") else RESPONSES
        )

    return httpx.AsyncClient(transport=httpx.MockTransport(handle))


@pytest.mark.scenario("WR-12")
async def test_a_request_is_signed_as_the_clouds_own_signer_signs_it(tmp_path: Path, key: Any) -> None:
    """Method, path, host, date and body digest are covered; another key or body is refused."""
    oci = pytest.importorskip("oci")
    write_profile(tmp_path, pem(key))
    seen: list[httpx.Request] = []
    model = resolve_model("oci:openai.gpt-5.5", http_client=client(seen))
    assert isinstance(model, OCIModel)
    done = await send(model)
    assert done.request_id == "opc-1"
    [request] = seen
    host = "inference.generativeai.us-chicago-1.oci.oraclecloud.com"
    assert str(request.url) == f"https://{host}/openai/v1/responses"
    assert json.loads(request.content)["model"] == "openai.gpt-5.5"
    assert request.headers["compartmentid"] == request.headers["opc-compartment-id"] == TENANCY

    # The independent signer, with the same date and body: the scheme is deterministic.
    signer = oci.Signer(TENANCY, "ocid1.user.oc1..u", "aa:bb", str(tmp_path / "key.pem"))
    theirs = oci.signer.requests.Request("POST", str(request.url), data=request.content).prepare()
    theirs.headers.update({"date": request.headers["date"], "content-type": "application/json"})
    signer(theirs)
    for name in ("x-content-sha256", "authorization"):
        assert theirs.headers[name] == request.headers[name]
    assert accepted(request, request.content, key.public_key())

    from cryptography.hazmat.primitives.asymmetric import rsa

    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    assert not accepted(request, request.content, other.public_key())
    assert not accepted(request, request.content + b" ", key.public_key())


def accepted(request: httpx.Request, body: bytes, public_key: Any) -> bool:
    """Return True if the cloud's own verifier accepts the signature, and the digest is that of *body*."""
    import base64
    import hashlib

    from cryptography.hazmat.primitives import serialization as s
    from oci._vendor.httpsig_cffi.verify import HeaderVerifier

    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    data = public_key.public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
    verifier = HeaderVerifier(
        dict(request.headers),
        data,
        required_headers=["date", "(request-target)", "host", "x-content-sha256"],
        method=request.method,
        path=request.url.raw_path.decode(),
        host=request.url.host,
    )
    return digest == request.headers["x-content-sha256"] and bool(verifier.verify())


async def test_a_session_signs_with_its_token(tmp_path: Path, key: Any) -> None:
    """The token stands for the user; a key may have a pass phrase."""
    (tmp_path / "token").write_text("tok-en\n")
    token = {"security_token_file": str(tmp_path / "token"), "user": None, "fingerprint": None}
    write_profile(tmp_path, pem(key, "wrd"), pass_phrase="wrd", **token)
    seen: list[httpx.Request] = []
    await send(OCIModel("m", http_client=client(seen)))
    assert 'keyId="ST$tok-en"' in seen[0].headers["authorization"]


async def test_a_key_of_the_service_needs_no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Region and compartment come from the environment then."""
    monkeypatch.setenv("OCI_GENAI_API_KEY", "sk-oci")
    monkeypatch.setenv("OCI_REGION", "eu-frankfurt-1")
    monkeypatch.setenv("OCI_COMPARTMENT_ID", "ocid1.compartment")
    seen: list[httpx.Request] = []
    await send(OCIModel("m", project="ocid1.project", http_client=client(seen)))
    [request] = seen
    assert request.url.host == "inference.generativeai.eu-frankfurt-1.oci.oraclecloud.com"
    wanted = {"authorization": "Bearer sk-oci", "compartmentid": "ocid1.compartment", "openai-project": "ocid1.project"}
    assert {name: request.headers[name] for name in wanted} == wanted
    monkeypatch.delenv("OCI_COMPARTMENT_ID")
    await send(OCIModel("m", base_url="https://proxy.test/v1", interface="chat", http_client=client(seen)))
    assert [request.url.path.rpartition("v1")[2] for request in seen] == ["/responses", "/chat/completions"]
    assert seen[1].url.host == "proxy.test"
    assert "compartmentid" not in seen[1].headers


def test_what_is_missing_is_said_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile, a region, a file, a setting: each by its name."""
    with pytest.raises(UserError, match=r"no profile 'DEFAULT' in .*config"):
        OCIModel("m")
    with pytest.raises(UserError, match="no region"):
        OCIModel("m", api_key="k")
    with pytest.raises(UserError, match="no profile 'other'"):
        OCIModel("m", api_key="k", region="r", profile="other")
    with pytest.raises(UserValueError, match="interface"):
        OCIModel("m", api_key="k", region="r", interface="odd")  # type: ignore[arg-type,unused-ignore]
    with pytest.raises(UserValueError, match="region"):
        OCIModel("m", api_key="k", region="evil.test/x")
    file = write_profile(tmp_path, b"-----BEGIN nonsense s3cret", user=None)
    with pytest.raises(UserError, match="has no user"):
        OCIModel("m")
    file.write_text("[DEFAULT\npass_phrase=s3cret")
    with pytest.raises(UserError, match="MissingSectionHeaderError") as caught:
        OCIModel("m")
    assert "s3cret" not in str(caught.value)
    assert read_profile(file, "DEFAULT", optional=True) == {}


def test_a_key_that_cant_be_loaded_is_not_quoted(tmp_path: Path, key: Any) -> None:
    """The error says which file it is, and its class."""
    from cryptography.hazmat.primitives.asymmetric import ec

    for data, match in ((b"s3cret", "can't be loaded"), (pem(ec.generate_private_key(ec.SECP256R1())), "no RSA key")):
        write_profile(tmp_path, data)
        with pytest.raises(UserError, match=match) as caught:
            OCIModel("m")
        assert "s3cret" not in str(caught.value)
    write_profile(tmp_path, pem(key), key_file=str(tmp_path / "gone"))
    with pytest.raises(UserError, match="can't be read"):
        OCIModel("m")
    assert repr(RequestSigner("id", key)) == "RequestSigner(…)"


def test_a_signature_without_the_extra_says_what_to_install(
    tmp_path: Path, key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of the service need nothing."""
    write_profile(tmp_path, pem(key))
    monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives.asymmetric.rsa", None)
    with pytest.raises(UserError, match=r"pip install 'agentloop-anyio\[oci\]'"):
        OCIModel("m")
    assert OCIModel("m", api_key="k").name == "m"
