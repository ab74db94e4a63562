#!/usr/bin/env python3
"""/openapi.json against the standard, as a tool that reads such documents checks it."""

import copy

import openapi_spec_validator
from openapi_spec_validator.validation.exceptions import OpenAPIValidationError

import serve_support
from serve_support import ServeTest


class Document(ServeTest):
    def test_it_is_valid(self):
        document = self.server.json("GET", "/openapi.json")
        openapi_spec_validator.validate(document)
        broken = copy.deepcopy(document)
        del broken["paths"]["/healthz"]["get"]["responses"]["4XX"]["description"]
        with self.assertRaises(OpenAPIValidationError):
            openapi_spec_validator.validate(broken)


if __name__ == "__main__":
    serve_support.main()
