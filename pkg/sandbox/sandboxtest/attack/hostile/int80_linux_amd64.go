package hostile

func int80(nr int32) int32
