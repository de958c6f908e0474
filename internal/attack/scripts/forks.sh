# A fork bomb that stops at its first argument, should nothing else stop it.
i=0
while [ "$i" -lt "$1" ]; do
	sleep 20 &
	i=$((i + 1))
	echo "$i"
done
echo done
