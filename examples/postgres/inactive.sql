CREATE TABLE users (id int PRIMARY KEY, email text, last_login date, is_active boolean);

INSERT INTO users VALUES
    (5, 'user5@example.com', '2025-06-15', true),
    (12, 'user12@example.com', '2025-11-01', true),
    (23, 'user23@example.com', '2025-07-20', false);

SELECT id, email, date '2025-11-21' - last_login AS days_inactive
FROM users
WHERE last_login < date '2025-11-21' - interval '90 days' AND is_active
ORDER BY last_login;
