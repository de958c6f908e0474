# Run by a shell before anything it was asked to: says whether there is a filter already.
while read -r name value; do
	[ "$name" = "Seccomp:" ] && echo "hooked $value"
done </proc/self/status
