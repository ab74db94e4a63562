#include "cli/app.h"

int main(int argc, char** argv) { return inferscale::RunCli(argc, argv); }
