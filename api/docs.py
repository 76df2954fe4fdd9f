"""`/openapi.json` and `/docs`: for programs, and the same as a page that loads nothing from elsewhere."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from flask import Blueprint, Response, jsonify, redirect, render_template, url_for
from markupsafe import Markup, escape
from werkzeug.wrappers import Response as AnyResponse

from api.openapi import Schema

_NO_SCRIPTS = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_BACKTICKS = re.compile(r"`([^`]+)`")
_LIMITS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "minLength": "length ≥ {}",
    "maxLength": "length ≤ {}",
    "maxProperties": "entries ≤ {}",
}


@dataclass(frozen=True, slots=True)
class DocsRoutes:
    """Serves one OpenAPI `document`, built once."""

    document: Schema

    def blueprint(self) -> Blueprint:
        routes = Blueprint("docs", __name__, template_folder="templates")
        routes.add_app_template_filter(_marked_code, "code")
        routes.add_url_rule("/openapi.json", "openapi", self.openapi, methods=["GET"])
        routes.add_url_rule("/docs", "page", self.page, methods=["GET"])
        routes.add_url_rule("/", "root", self.root, methods=["GET"])
        return routes

    def openapi(self) -> Response:
        return jsonify(self.document)

    def page(self) -> Response:
        schemas = self.document["components"]["schemas"]
        tables = {name: _rows(schema, schemas) for name, schema in schemas.items() if "properties" in schema}
        page = Response(render_template("docs.html", document=self.document, tables=tables), mimetype="text/html")
        page.headers["Content-Security-Policy"] = _NO_SCRIPTS
        return page

    def root(self) -> AnyResponse:
        return redirect(url_for("docs.page"))


def _marked_code(text: str) -> Markup:
    """HTML of a text of the document, in which backticks mark code as CommonMark has it."""
    return Markup(_BACKTICKS.sub(r"<code>\1</code>", str(escape(text))))


@dataclass(frozen=True, slots=True)
class Row:
    """One property of a schema, in words."""

    name: str
    kind: str
    required: bool
    default: str
    description: str


def _rows(schema: Schema, schemas: dict[str, Schema]) -> list[Row]:
    required = schema.get("required", [])
    return [
        Row(
            name,
            kind_in_words(value, schemas),
            name in required,
            "" if value.get("default") is None else str(value["default"]),
            value.get("description", ""),
        )
        for name, value in schema["properties"].items()
    ]


def kind_in_words(schema: Schema, schemas: dict[str, Schema]) -> str:
    """Type and limits of a JSON schema, as a reader says them: `integer, ≥ 1, ≤ 128`.

    `schemas` are those that it may refer to: lists of words are written out, objects named.
    """
    alternatives = [kind_in_words(item, schemas) for item in schema.get("anyOf", []) if item.get("type") != "null"]
    if alternatives:
        return " or ".join(alternatives)
    if "$ref" in schema:
        name = str(schema["$ref"]).rsplit("/", 1)[-1]
        return kind_in_words(schemas[name], schemas) if "enum" in schemas[name] else name
    if "enum" in schema:
        return "one of " + ", ".join(str(value) for value in schema["enum"])
    kind = str(schema.get("format", schema.get("type", "any")))
    if kind == "array":
        kind = f"list of {kind_in_words(schema.get('items', {}), schemas)}"
    limits = [words.format(_number(schema[limit])) for limit, words in _LIMITS.items() if limit in schema]
    return ", ".join([kind, *limits])


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
