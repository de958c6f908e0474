package toolchain

// Description describes how to find a toolchain, on this machine and in an image. It is data of the language's package.
type Description struct {
	Name     string
	Programs []string // names of the program that is looked for, the best first
	// First and Places are patterns of paths to look at before and after the directories of PATH. ~ is the home directory, $X a variable;
	// a place whose variable is unset is left out. An image has no home and no variables.
	First, Places []string
	// Variables of the user's environment decide which toolchain is meant, beside CommonVariables. Queried programs see them too.
	Variables []string
	// Settings are further variables of queried programs (NAME=value): they keep programs from downloading and from reading a project's files.
	Settings []string
	Packages Packages
	// Detail tells descriptions of one name apart in the store.
	Detail string
	// Query asks a program that was found what it is, and describes the toolchain. An error passes the program over; see Search.Incomplete.
	Query func(*Search, Program) (*Toolchain, error)
}

// Packages are the names of a toolchain in package managers; dnf, yum and zypper share theirs.
type Packages struct{ Apt, Dnf, Apk, Pacman, Brew string }
