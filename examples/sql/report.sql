-- orders.csv beside this file is the table orders.
SELECT customer, count(*) AS orders, sum(amount) AS total
FROM orders
GROUP BY customer
ORDER BY total DESC;
