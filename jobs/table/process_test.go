package table_test

const processVariable = "TABLE_PROCESS"

func beProcess() {}
