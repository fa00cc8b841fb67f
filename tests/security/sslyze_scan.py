"""A scan of a TLS listener by sslyze's API, as a program for a Python that has sslyze: HOST PORT CA, JSON to stdout."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sslyze import (  # type: ignore[import-not-found]
    CertificateInfoExtraArgument,
    ScanCommand,
    ScanCommandsExtraArguments,
    Scanner,
    ServerNetworkLocation,
    ServerScanRequest,
)

VERSIONS = ("ssl_3_0", "tls_1_0", "tls_1_1", "tls_1_2", "tls_1_3")
COMMANDS = {
    ScanCommand.CERTIFICATE_INFO,
    ScanCommand.TLS_COMPRESSION,
    ScanCommand.TLS_1_3_EARLY_DATA,
    ScanCommand.SESSION_RENEGOTIATION,
    ScanCommand.SESSION_RESUMPTION,
    ScanCommand.HEARTBLEED,
    ScanCommand.OPENSSL_CCS_INJECTION,
    ScanCommand.ROBOT,
    ScanCommand.ELLIPTIC_CURVES,
    *(ScanCommand[f"{version.upper()}_CIPHER_SUITES"] for version in VERSIONS),
}


def _reason(answer: Any) -> str:
    """Why a part of the scan has no result."""
    last = list(answer.error_trace.format_exception_only()) if answer.error_trace is not None else []
    return f"{answer.error_reason} {' '.join(last)}".strip()


def main(host: str, port: int, ca: Path) -> None:
    more = ScanCommandsExtraArguments(certificate_info=CertificateInfoExtraArgument(custom_ca_file=ca))
    location = ServerNetworkLocation(host, port)
    scanner = Scanner()
    scanner.queue_scans([ServerScanRequest(location, scan_commands=COMMANDS, scan_commands_extra_arguments=more)])
    (result,) = scanner.get_results()
    if result.scan_result is None:
        print(json.dumps({"unreachable": str(result.connectivity_error_trace)}))
        return
    answers = {command.value: getattr(result.scan_result, command.value) for command in COMMANDS}
    errors = {name: _reason(answer) for name, answer in answers.items() if answer.result is None}
    found = {name: answer.result for name, answer in answers.items()}
    if errors:
        print(json.dumps({"errors": errors}))
        return
    said = {
        "ciphers": {
            version: [
                accepted.cipher_suite.name for accepted in found[f"{version}_cipher_suites"].accepted_cipher_suites
            ]
            for version in VERSIONS
        },
        "compression": found["tls_compression"].supports_compression,
        "early data": found["tls_1_3_early_data"].supports_early_data,
        "renegotiation": found["session_renegotiation"].is_vulnerable_to_client_renegotiation_dos,
        "heartbleed": found["heartbleed"].is_vulnerable_to_heartbleed,
        "ccs": found["openssl_ccs_injection"].is_vulnerable_to_ccs_injection,
        "robot": found["robot"].robot_result.name,
        "resumption": {
            "ids": found["session_resumption"].session_id_resumption_result.name,
            "tickets": found["session_resumption"].tls_ticket_resumption_result.name,
        },
        "certificate": [
            str(checked.validation_error or "valid")
            for deployment in found["certificate_info"].certificate_deployments
            for checked in deployment.path_validation_results
            if checked.trust_store.path == ca
        ],
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
