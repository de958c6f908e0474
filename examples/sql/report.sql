-- orders.csv lies beside this file and is a table.
SELECT customer, count(*) AS orders, sum(amount) AS total
FROM orders
GROUP BY customer
ORDER BY total DESC;
