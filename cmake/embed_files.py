"""Writes a C++ source file that holds the bytes of the given files."""

import argparse
import pathlib

PROLOGUE = """\
#include "{header}"

#include <string_view>

namespace inferscale {{
namespace {{

struct File {{
  std::string_view name;
  std::string_view bytes;
}};

"""

EPILOGUE = """\
}}  // namespace

std::string_view {function}(std::string_view name) {{
  for (const File* file = kFiles; !file->name.empty(); ++file) {{
    if (file->name == name) return file->bytes;
  }}
  return {{}};
}}

}}  // namespace inferscale
"""

BYTES_PER_LINE = 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--header", required=True, help="header that declares the function")
    parser.add_argument("--function", required=True, help="its name; takes a file's name")
    parser.add_argument("--output", required=True, type=pathlib.Path)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args()

    parts = [PROLOGUE.format(header=arguments.header)]
    entries = []
    for index, path in enumerate(sorted(arguments.files)):
        data = path.read_bytes()
        # char cannot hold bytes above 127 in a braced list, so the array is unsigned.
        parts.append(f"const unsigned char kData{index}[] = {{\n")
        for start in range(0, len(data), BYTES_PER_LINE):
            parts.append("".join(f"{byte}," for byte in data[start : start + BYTES_PER_LINE]) + "\n")
        parts.append("0};\n\n")
        entries.append(
            f'    {{"{path.name}", {{reinterpret_cast<const char*>(kData{index}), {len(data)}}}}},\n'
        )
    parts.append("const File kFiles[] = {\n" + "".join(entries) + "    {},\n};\n\n")
    parts.append(EPILOGUE.format(function=arguments.function))

    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text("".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
