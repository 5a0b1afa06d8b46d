"""`OCIModel`: models of Oracle's cloud behind its OpenAI-compatible endpoint, with its keys or its signatures.

`RequestSigner` signs requests, and `read_profile` reads the configuration file of the cloud's own tools. Does not know
about HTTP: a signer changes the headers of a request object that the driver's client makes. Needs the extra `oci` for
signatures, and nothing for keys.
"""

from __future__ import annotations

import configparser
import hashlib
import os
from base64 import b64encode
from collections.abc import Mapping
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack

from agentloop._common.extras import describe_missing
from agentloop.exceptions import UserError, UserValueError
from agentloop.model_events import ModelInfo
from agentloop.models._codec import read_variable
from agentloop.models._http_model import HttpModel
from agentloop.models._openai import make_headers
from agentloop.models.openai_chat import make_chat_codec
from agentloop.models.openai_responses import make_responses_codec
from agentloop.models.timeouts import HttpOptions, ModelTimeouts

_URL = "https://inference.generativeai.{region}.oci.oraclecloud.com/openai/v1"
_SIGNED = ("date", "(request-target)", "host", "content-length", "content-type", "x-content-sha256")
_COMPARTMENT = ("compartmentid", "opc-compartment-id")
"""The headers for the compartment: the interfaces behind the endpoint read different ones."""


class OCIModel(HttpModel):
    """A model of Oracle's cloud, called by its name there: `openai.gpt-5.5`.

    The region, the compartment and the credentials are arguments, else environment variables, else those of a profile
    in the configuration file of the cloud's tools:

    * `region`, OCI_REGION, or `region` in the profile; `base_url` names another endpoint.
    * `compartment`, OCI_COMPARTMENT_ID, or the profile's tenancy.
    * `api_key` or OCI_GENAI_API_KEY: a key of the service. Without one, requests are signed with the profile's RSA key,
      for its user or, if it has a `security_token_file`, for that session.
    * `config_file` or OCI_CONFIG_FILE (`~/.oci/config`), `profile` or OCI_CLI_PROFILE (`DEFAULT`).

    `project` is the id of a project there. `interface` is that of the endpoint: Responses, or Chat Completions for the
    models that lack it. Everything else is as in `HttpModel`.

    Raises:
        UserError: if the region or credentials are missing, or the key can't be read.
    """

    def __init__(
        self,
        name: str,
        *,
        region: str | None = None,
        compartment: str | None = None,
        project: str | None = None,
        interface: Literal["responses", "chat"] = "responses",
        base_url: str | None = None,
        api_key: str | None = None,
        config_file: str | os.PathLike[str] | None = None,
        profile: str | None = None,
        http_client: Any = None,
        timeouts: ModelTimeouts | None = None,
        **options: Unpack[HttpOptions],
    ) -> None:
        key = api_key or read_variable("OCI_GENAI_API_KEY")
        file = Path(config_file or read_variable("OCI_CONFIG_FILE") or "~/.oci/config").expanduser()
        chosen = profile or read_variable("OCI_CLI_PROFILE") or "DEFAULT"
        # A key needs no profile, but one that is asked for by name has to be there.
        optional = key is not None and config_file is None and profile is None
        found = read_profile(file, chosen, optional=optional)
        region = region or read_variable("OCI_REGION") or found.get("region")
        if not region and not base_url:
            raise UserError(f"OCIModel({name!r}): no region. Give `region`, or set OCI_REGION.")
        compartment = compartment or read_variable("OCI_COMPARTMENT_ID") or found.get("tenancy")
        if interface not in ("responses", "chat"):
            raise UserValueError(f'interface: expected "responses" or "chat", got {interface!r}')
        make_codec = make_responses_codec if interface == "responses" else make_chat_codec
        super().__init__(
            name,
            make_codec(partial(_make_headers, compartment=compartment, project=project)),
            base_url=base_url or _URL.format(region=_check_region(region)),
            api_key=key,
            auth=None if key else RequestSigner.from_profile(found, place=f"{file}, profile {chosen}"),
            http_client=http_client,
            timeouts=timeouts,
            **options,
        )

    @property
    def info(self) -> ModelInfo:
        """The provider `oci`, the name and the base URL."""
        return ModelInfo("oci", self.name, self.base_url)


def _make_headers(key: str | None, *, compartment: str | None, project: str | None) -> dict[str, str]:
    headers = make_headers(key, project=project)
    return headers | (dict.fromkeys(_COMPARTMENT, compartment) if compartment else {})


def _check_region(region: str | None) -> str:
    if region is None or not region.replace("-", "").isalnum():
        raise UserValueError(f"region: expected a name like 'us-chicago-1', got {region!r}")
    return region


def read_profile(file: Path, profile: str, *, optional: bool = False) -> Mapping[str, str]:
    """Return the settings of *profile* in the configuration *file*; none if *optional* and there is no such profile.

    Raises:
        UserError: if the file or the profile is missing, or the file can't be read.
    """
    parser = configparser.ConfigParser(interpolation=None)
    try:
        with file.open(encoding="utf-8") as lines:
            parser.read_file(lines)
        return dict(parser[profile])
    except (OSError, KeyError, ValueError, configparser.Error) as error:
        if optional:
            return {}
        # A parser's error quotes the line, which may be a pass phrase.
        why = f"{type(error).__name__}" if isinstance(error, configparser.ParsingError | ValueError) else str(error)
        raise UserError(f"oci: no profile {profile!r} in {file}: {why}. Give `api_key`, or `config_file`.") from None


class RequestSigner:
    """Signs requests with an RSA key, by the cloud's version of HTTP signatures. Call it with the client's request.

    The signature covers method, path, host, date, and the body by its digest, so that neither can be changed on the way
    and an old request isn't accepted for long.
    """

    def __init__(self, key_id: str, private_key: Any) -> None:
        self._key_id = key_id
        self._private_key = private_key

    def __repr__(self) -> str:
        return "RequestSigner(…)"

    @classmethod
    def from_profile(cls, profile: Mapping[str, str], *, place: str) -> RequestSigner:
        """Return the signer for the user, or the session, of *profile*. Reads the files that it names.

        Raises:
            UserError: if a setting, a file or the extra `oci` is missing, or the key can't be read; doesn't quote keys.
        """
        needed = ["key_file"] if "security_token_file" in profile else ["tenancy", "user", "fingerprint", "key_file"]
        if missing := [name for name in needed if not profile.get(name)]:
            raise UserError(f"oci: {place} has no {', '.join(missing)}")
        private_key = _load_key(_read_file(profile["key_file"], place), profile.get("pass_phrase"), place)
        if "security_token_file" in profile:
            token = _read_file(profile["security_token_file"], place).decode("utf-8", "replace").strip()
            return cls(f"ST${token}", private_key)
        return cls("/".join(profile[name] for name in ("tenancy", "user", "fingerprint")), private_key)

    def __call__(self, request: Any) -> Any:
        """Return *request* with the headers of its signature."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import padding

        headers = request.headers
        headers["date"] = formatdate(usegmt=True)
        headers["x-content-sha256"] = b64encode(hashlib.sha256(request.content).digest()).decode()
        target = f"{request.method.lower()} {request.url.raw_path.decode('ascii')}"
        values = {name: target if name == "(request-target)" else headers[name] for name in _SIGNED}
        text = "\n".join(f"{name}: {value}" for name, value in values.items())
        signature = b64encode(
            self._private_key.sign(text.encode("ascii"), padding.PKCS1v15(), hashes.SHA256())
        ).decode()
        headers["authorization"] = (
            f'Signature algorithm="rsa-sha256",headers="{" ".join(_SIGNED)}",keyId="{self._key_id}",'
            f'signature="{signature}",version="1"'
        )
        return request


def _read_file(name: str, place: str) -> bytes:
    try:
        return Path(name).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"oci: a file that {place} names can't be read: {error}") from None


def _load_key(data: bytes, pass_phrase: str | None, place: str) -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        raise UserError(describe_missing("oci: signing requests", "oci")) from None
    try:
        key = load_pem_private_key(data, pass_phrase.encode() if pass_phrase else None)
    except (TypeError, ValueError) as error:
        raise UserError(f"oci: the key_file of {place} can't be loaded ({type(error).__name__})") from None
    if not isinstance(key, RSAPrivateKey):
        raise UserError(f"oci: the key_file of {place} holds no RSA key")
    return key


def model_by_name(name: str, *, http_client: Any = None) -> OCIModel:
    """Return the model for the model string `oci:NAME`."""
    return OCIModel(name, http_client=http_client)
