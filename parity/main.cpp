// parity_<op>: built once per op, with its name in ASSAY_PARITY_OP.
#include "parity/command.h"

int main(int argc, char** argv) { return assay::parity_main(ASSAY_PARITY_OP, argc, argv); }
