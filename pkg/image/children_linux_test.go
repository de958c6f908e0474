package image_test

func child(string) int { return 0 }
