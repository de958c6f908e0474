package shop;

public class Main {
    public static void main(String[] args) {
        var basket = new Basket();
        basket.add("tea", 350);
        basket.add("biscuits", 199);
        System.out.println(basket);
    }
}
